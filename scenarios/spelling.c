/* spelling: nearness is the optimal string alignment distance: inserting, deleting, replacing a character
 * or swapping two neighbours costs 1 each (Damerau 1964, restricted: no substring is edited twice).
 *
 *   d[i][j] = min(d[i-1][j] + 1, d[i][j-1] + 1, d[i-1][j-1] + (a_i != b_j), d[i-2][j-2] + 1 if swapped)
 *
 * Upper and lower case count as equal. Near is what needs changes in at most two fifths of the longer name, or
 * begins with the other name. */
#include "scenarios/spelling.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { LENGTH_MAX = 64, FOREIGN_MAX = 60 };

static int least(int a, int b)
{
    return a < b ? a : b;
}

static bool differ(char a, char b)
{
    return tolower((unsigned char)a) != tolower((unsigned char)b);
}

static int alignment_distance(const char *a, const char *b, int a_length, int b_length)
{
    int rows[3][LENGTH_MAX + 1], *before = rows[0], *last = rows[1], *row = rows[2];
    for (int j = 0; j <= b_length; j++) last[j] = j;
    for (int i = 1; i <= a_length; i++) {
        row[0] = i;
        for (int j = 1; j <= b_length; j++) {
            row[j] = least(least(last[j], row[j - 1]) + 1, last[j - 1] + differ(a[i - 1], b[j - 1]));
            bool swapped = i > 1 && j > 1 && !differ(a[i - 1], b[j - 2]) && !differ(a[i - 2], b[j - 1]);
            if (swapped) row[j] = least(row[j], before[j - 2] + 1);
        }
        int *oldest = before;
        before = last;
        last = row;
        row = oldest;
    }
    return last[b_length];
}

/* -1: not near */
static int nearness(const char *name, const char *known)
{
    size_t a = strlen(name), b = strlen(known), longer = a > b ? a : b, shorter = a > b ? b : a;
    if (shorter == 0 || longer > LENGTH_MAX) return -1;
    int distance = alignment_distance(name, known, (int)a, (int)b);
    if (5 * (size_t)distance <= 2 * longer || distance == 1) return distance;
    bool begins = shorter >= 3 && !strncasecmp(name, known, shorter);
    return begins ? (int)longer : -1;
}

const char *spelling_nearest(const char *name, const char *const *names, int count)
{
    const char *nearest = NULL;
    int nearest_distance = 0;
    for (int i = 0; i < count; i++) {
        int distance = nearness(name, names[i]);
        if (distance < 0 || (nearest && distance >= nearest_distance)) continue;
        nearest = names[i];
        nearest_distance = distance;
    }
    return nearest;
}

void phrase_add(struct phrase *phrase, const char *format, ...)
{
    if (phrase->used >= phrase->size) return;
    va_list arguments;
    va_start(arguments, format);
    int more = vsnprintf(phrase->text + phrase->used, phrase->size - phrase->used, format, arguments);
    va_end(arguments);
    if (more > 0) phrase->used += (size_t)more;
}

const char *foreign(const char *text, char buffer[FOREIGN_TEXT])
{
    size_t length = strlen(text), shown = length;
    if (length > FOREIGN_MAX) {
        shown = FOREIGN_MAX;
        while (shown > 0 && ((unsigned char)text[shown] & 0xc0) == 0x80) shown--;
    }
    for (size_t i = 0; i < shown; i++) {
        unsigned char c = (unsigned char)text[i];
        buffer[i] = c < 0x20 || c == 0x7f ? '?' : (char)c;
        /* U+0080 .. U+009F are control characters too: C2 80 .. C2 9F */
        if (i > 0 && (unsigned char)text[i - 1] == 0xc2 && c < 0xa0 && c >= 0x80) buffer[i - 1] = buffer[i] = '?';
    }
    strcpy(buffer + shown, shown < length ? "..." : "");
    return buffer;
}

void phrase_add_foreign(struct phrase *phrase, const char *text)
{
    char buffer[FOREIGN_TEXT];
    phrase_add(phrase, "%s", foreign(text, buffer));
}

void phrase_add_names(struct phrase *phrase, const char *const *names, int count)
{
    for (int i = 0; i < count; i++) phrase_add(phrase, "%s'%s'", i ? ", " : "", names[i]);
}
