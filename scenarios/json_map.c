/* json_map: nodes in the order of the text, and a hash table from (parent, key or index) to node. The table is
 * only asked, never walked, so its order reaches nothing. */
#include "scenarios/json_map.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "scenarios/spelling.h"
#include "sim/arena.h"
#include "sim/hash.h"

enum { NO_KEY = -1 };
struct node {
    int parent, index;
    ptrdiff_t key; /* offset in keys, or NO_KEY */
    struct json_place key_place, value_place;
};

struct json_map {
    int count, capacity;
    struct node *nodes;
    char *keys;                   /* NUL-terminated, one behind the other */
    size_t keys_used, keys_capacity;
    int *slots;                   /* node + 1; 0 is free */
    size_t slots_count;           /* a power of two, at least twice the nodes */
};

struct json_map *json_map_new(void)
{
    struct json_map *map = memory_zalloc(sizeof *map);
    map->slots_count = 64;
    map->slots = memory_zalloc(map->slots_count * sizeof *map->slots);
    return map;
}

void json_map_free(struct json_map *map)
{
    if (!map) return;
    free(map->nodes);
    free(map->keys);
    free(map->slots);
    free(map);
}

int json_map_count(const struct json_map *map)
{
    return map->count;
}

static size_t slot_of(const struct json_map *map, int parent, const char *key, int index)
{
    uint64_t name = key ? hash_string(key) : (uint64_t)index;
    return (size_t)hash_mix(name ^ hash_mix((uint64_t)(parent + 2))) & (map->slots_count - 1);
}

static bool is_child(const struct json_map *map, int node, int parent, const char *key, int index)
{
    const struct node *n = &map->nodes[node];
    if (n->parent != parent || (key != NULL) != (n->key != NO_KEY)) return false;
    return key ? !strcmp(map->keys + n->key, key) : n->index == index;
}

static int find(const struct json_map *map, int parent, const char *key, int index)
{
    for (size_t slot = slot_of(map, parent, key, index); map->slots[slot]; slot = (slot + 1) & (map->slots_count - 1)) {
        if (is_child(map, map->slots[slot] - 1, parent, key, index)) return map->slots[slot] - 1;
    }
    return -1;
}

static void place_in_table(struct json_map *map, int node)
{
    const struct node *n = &map->nodes[node];
    size_t slot = slot_of(map, n->parent, n->key == NO_KEY ? NULL : map->keys + n->key, n->index);
    while (map->slots[slot]) slot = (slot + 1) & (map->slots_count - 1);
    map->slots[slot] = node + 1;
}

static ptrdiff_t keep_key(struct json_map *map, const char *key)
{
    size_t bytes = strlen(key) + 1;
    if (map->keys_used + bytes > map->keys_capacity) {
        map->keys_capacity = 2 * (map->keys_used + bytes);
        map->keys = memory_realloc(map->keys, map->keys_capacity);
    }
    memcpy(map->keys + map->keys_used, key, bytes);
    map->keys_used += bytes;
    return (ptrdiff_t)(map->keys_used - bytes);
}

int json_map_add(struct json_map *map, int parent, const char *key, int index, struct json_place key_place,
                 struct json_place value_place)
{
    if (map->count == map->capacity) {
        map->capacity = map->capacity ? 2 * map->capacity : 64;
        map->nodes = memory_realloc(map->nodes, (size_t)map->capacity * sizeof *map->nodes);
    }
    int node = map->count++;
    map->nodes[node] = (struct node){parent, index, key ? keep_key(map, key) : NO_KEY, key_place, value_place};
    if (2 * (size_t)map->count > map->slots_count) {
        free(map->slots);
        map->slots_count *= 2;
        map->slots = memory_zalloc(map->slots_count * sizeof *map->slots);
        for (int i = 0; i < map->count; i++) place_in_table(map, i);
    } else {
        place_in_table(map, node);
    }
    return node;
}

void json_map_set_value_place(struct json_map *map, int node, struct json_place place)
{
    map->nodes[node].value_place = place;
}

int json_map_child(const struct json_map *map, int parent, const char *key)
{
    return find(map, parent, key, 0);
}

int json_map_item(const struct json_map *map, int parent, int index)
{
    return find(map, parent, NULL, index);
}

int json_map_find(const struct json_map *map, const char *path, bool *ret_exact)
{
    int node = map->count ? 0 : -1;
    char key[256];
    *ret_exact = true;
    while (node >= 0 && *path) {
        int next = -1;
        if (*path == '[') {
            next = json_map_item(map, node, (int)strtol(path + 1, NULL, 10));
            path += strcspn(path, "]");
            path += *path == ']';
        } else {
            size_t length = strcspn(path, ".[");
            if (length < sizeof key) {
                memcpy(key, path, length);
                key[length] = 0;
                next = json_map_child(map, node, key);
            }
            path += length;
        }
        path += *path == '.';
        if (next < 0) {
            *ret_exact = false;
            return node;
        }
        node = next;
    }
    return node;
}

struct json_place json_map_key_place(const struct json_map *map, int node)
{
    return map->nodes[node].key == NO_KEY ? map->nodes[node].value_place : map->nodes[node].key_place;
}

struct json_place json_map_value_place(const struct json_map *map, int node)
{
    return map->nodes[node].value_place;
}

static void add_path(const struct json_map *map, int node, struct phrase *phrase)
{
    const struct node *n = &map->nodes[node];
    if (n->parent < 0) return;
    add_path(map, n->parent, phrase);
    if (n->key == NO_KEY) {
        phrase_add(phrase, "[%d]", n->index);
        return;
    }
    if (map->nodes[n->parent].parent >= 0) phrase_add(phrase, ".");
    phrase_add_foreign(phrase, map->keys + n->key);
}

void json_map_path(const struct json_map *map, int node, char *text, size_t size)
{
    struct phrase phrase = {text, size, 0};
    text[0] = 0;
    if (node >= 0) add_path(map, node, &phrase);
}
