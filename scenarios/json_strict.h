/* json_strict: is this text JSON as RFC 8259 has it, and nothing more? A pass over the text before cJSON reads it,
 * because cJSON also takes duplicate keys, 01, 1e999, a byte-order mark, and cuts strings at NUL. */
#ifndef SCENARIOS_JSON_STRICT_H
#define SCENARIOS_JSON_STRICT_H

#include "scenarios/json_map.h"
#include "sim/error.h"

enum { JSON_DEPTH_MAX = 64, JSON_VALUES_MAX = 100000, JSON_NUMBER_MAX = 60 };

/* The text must end with a NUL behind its bytes. NULL and an error with line, column and key path (the caller adds
 * the file), else the map of its places, which the caller owns. object_only: the document must be an object.
 * Reads numbers in the current locale, which must have a decimal point. */
struct json_map *json_strict(const char *text, size_t bytes, bool object_only, struct error *error);

/* Is this UTF-8 without control characters? */
bool json_text_valid(const char *text, size_t bytes);

#endif
