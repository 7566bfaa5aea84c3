/* corpus: the shipped text, so that a scenario anywhere has something to train on. */
#ifndef SCENARIOS_CORPUS_H
#define SCENARIOS_CORPUS_H

#include <stddef.h>

extern const char corpus_text[]; /* NUL-terminated */
extern const size_t corpus_bytes;

#endif
