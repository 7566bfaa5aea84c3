/* nearest: by the optimal string alignment distance (insert, delete, replace, swap of neighbours cost 1
 * each; Damerau 1964 in its restricted form). A name is near when at most a third of it has to change,
 * or when one is the beginning of the other. */
#include "tools/nearest.h"

#include <stdbool.h>
#include <string.h>

enum { NAME_MAX_LENGTH = 63 };

static int smaller(int a, int b)
{
    return a < b ? a : b;
}

static int distance(const char *a, const char *b)
{
    int la = (int)strlen(a), lb = (int)strlen(b);
    if (la > NAME_MAX_LENGTH || lb > NAME_MAX_LENGTH) return NAME_MAX_LENGTH + 1;
    int d[NAME_MAX_LENGTH + 1][NAME_MAX_LENGTH + 1];
    for (int i = 0; i <= la; i++) d[i][0] = i;
    for (int j = 0; j <= lb; j++) d[0][j] = j;
    for (int i = 1; i <= la; i++) {
        for (int j = 1; j <= lb; j++) {
            d[i][j] = smaller(smaller(d[i - 1][j], d[i][j - 1]) + 1, d[i - 1][j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) d[i][j] = smaller(d[i][j], d[i - 2][j - 2] + 1);
        }
    }
    return d[la][lb];
}

const char *nearest_name(const char *name, const char *const *names, int count)
{
    const char *best = NULL;
    size_t length = strlen(name);
    int best_distance = 0;
    for (int i = 0; i < count; i++) {
        int d = distance(name, names[i]);
        size_t other = strlen(names[i]), longer = length > other ? length : other;
        bool begins = length >= 3 && other >= 3 && !strncmp(name, names[i], length < other ? length : other);
        if (begins && d > 2) d = 2;
        else if (3 * (size_t)d > longer) continue;
        if (!best || d < best_distance) {
            best = names[i];
            best_distance = d;
        }
    }
    return best;
}
