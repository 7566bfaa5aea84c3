/* spelling: what a misspelt name most likely meant, and how the user's own text is shown in a message. */
#ifndef SCENARIOS_SPELLING_H
#define SCENARIOS_SPELLING_H

#include <stddef.h>

/* The first of the nearest; NULL where none is near. */
const char *spelling_nearest(const char *name, const char *const *names, int count);

/* Appends to the text at *used, as much as there is room for; always terminated. */
struct phrase { char *text; size_t size, used; };
void phrase_add(struct phrase *phrase, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Like %s, but made harmless for a terminal: control characters become '?'; cut after 60 bytes, at a character. */
void phrase_add_foreign(struct phrase *phrase, const char *text);
/* "'a', 'b', 'c'" */
void phrase_add_names(struct phrase *phrase, const char *const *names, int count);

enum { FOREIGN_TEXT = 72 };
/* The same into a buffer of its own, for use as an argument. */
const char *foreign(const char *text, char buffer[FOREIGN_TEXT]);

#endif
