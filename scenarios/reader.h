/* reader: a scenario's JSON tree, read by the table of keys; knows for each path the place to blame.
 *
 * A place is, in this order: the --fault that is read; the last --set that gave the value; line and column. */
#ifndef SCENARIOS_READER_H
#define SCENARIOS_READER_H

#include <cjson/cJSON.h>
#include "scenarios/json_map.h"
#include "scenarios/keys.h"

struct reader {
    const char *file;
    cJSON *root;
    struct json_map *map;             /* of the file's text */
    int overrides_count;              /* those merged so far */
    const struct override *overrides;
    char **override_paths;            /* theirs, as paths are written here: faults[0].at.step */
    const struct plugin *plugin;      /* of the file; NULL: none, or not open yet */
    const char *place;                /* "--fault loss-divided-twice@step=0" while that is read; else NULL */
    struct error *error;
};

/* Sets the error, with the place of the value at `path`. Always false. */
bool reader_fail(struct reader *reader, const char *path, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* For what several keys say together: the first of the paths (NULL behind the last) that a --set gave, else the first
 * that is in the file, else the first. */
bool reader_fail_among(struct reader *reader, const char *const *paths, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* NULL: not given. No list indices. */
const cJSON *reader_descend(const cJSON *object, const char *path);
const cJSON *reader_item(const struct reader *reader, const char *path);
bool reader_has(const struct reader *reader, const char *path);

/* Every key below `object` has a line in the table, and sections are objects. section is the path in the table,
 * path the one to show ("faults[]", "faults[3]"); both "" for the whole file. */
bool reader_check_keys(struct reader *reader, const cJSON *object, const char *section, const char *path);
/* Reads all keys below section, defaults where they are not given, into base. */
bool reader_read(struct reader *reader, const cJSON *object, const char *section, const char *path, void *base);

/* "3", "'abc'", "a list": what was found, for a message. */
void reader_describe(const cJSON *item, char *text, size_t size);

#endif
