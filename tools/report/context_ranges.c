/* context_ranges: positions in short form: runs, or one stride; the first few and how many more. */
#include <stdio.h>
#include "scenarios/spelling.h"
#include "tools/report/report.h"

enum { RUNS_SHOWN = 5 };

static bool one_stride(const int32_t *positions, int64_t count)
{
    for (int64_t i = 2; i < count; i++) {
        if (positions[i] - positions[i - 1] != positions[1] - positions[0]) return false;
    }
    return count > 2 && positions[1] - positions[0] > 1;
}

const char *context_ranges(const int32_t *positions, int64_t count, char text[RANGES_TEXT])
{
    struct phrase phrase = {text, RANGES_TEXT, 0};
    int shown = 0;
    text[0] = '\0';
    if (count == 0) {
        phrase_add(&phrase, "none");
    } else if (one_stride(positions, count)) {
        phrase_add(&phrase, "%d-%d, every %d", positions[0], positions[count - 1], positions[1] - positions[0]);
    } else {
        for (int64_t i = 0; i < count;) {
            int64_t end = i;
            while (end + 1 < count && positions[end + 1] == positions[end] + 1) end++;
            if (shown == RUNS_SHOWN) {
                phrase_add(&phrase, ", ... %d", positions[count - 1]);
                break;
            }
            if (end == i) phrase_add(&phrase, "%s%d", shown ? ", " : "", positions[i]);
            else phrase_add(&phrase, "%s%d-%d", shown ? ", " : "", positions[i], positions[end]);
            shown++;
            i = end + 1;
        }
    }
    return text;
}
