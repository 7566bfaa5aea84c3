/* json_map: where in the text each key and value of a JSON document stands.
 *
 * A tree of nodes, node 0 the whole document; children by key or by index. Lines and columns count from 1,
 * columns in characters (code points), a tab being one. */
#ifndef SCENARIOS_JSON_MAP_H
#define SCENARIOS_JSON_MAP_H

#include <stdbool.h>
#include <stddef.h>

struct json_place { int line, column; };
struct json_map;

struct json_map *json_map_new(void);          /* caller owns; no node yet */
void json_map_free(struct json_map *map);     /* accepts NULL */
int json_map_count(const struct json_map *map);

/* The new node's number. parent -1: the document. key NULL: the index-th of a list. The key is copied. */
int json_map_add(struct json_map *map, int parent, const char *key, int index, struct json_place key_place,
                 struct json_place value_place);
void json_map_set_value_place(struct json_map *map, int node, struct json_place place);

/* -1: none */
int json_map_child(const struct json_map *map, int parent, const char *key);
int json_map_item(const struct json_map *map, int parent, int index);
/* The node of a path such as faults[0].at.step; where there is none, *ret_exact is false and it is the nearest one
 * above that is there. -1 only for an empty map. */
int json_map_find(const struct json_map *map, const char *path, bool *ret_exact);

struct json_place json_map_key_place(const struct json_map *map, int node); /* the value's for list items */
struct json_place json_map_value_place(const struct json_map *map, int node);
/* faults[0].at.step; cut to size. */
void json_map_path(const struct json_map *map, int node, char *text, size_t size);

#endif
