/* keys: the table, and what can be asked of it. */
#include "scenarios/keys.h"

#include <stdio.h>
#include <string.h>

#include "collectives/collectives.h"
#include "model/schedule.h"
#include "scenarios/spelling.h"

#define WIDE_FORMATS "fp64|fp32|bf16|fp16"
#define FORMATS WIDE_FORMATS "|fp8_e4m3|fp8_e5m2" /* eight bits need a scale: operands of matrix products alone have one */
#define ALL NULL
#define NOWHERE {STORE_NOTHING, 0, 0, 0}
#define MEMBER(type, member, store) {store, offsetof(type, member), sizeof ((type *)0)->member, 0}
#define TO(member, store) MEMBER(struct draft, member, store)
#define DRAFT(member, store) MEMBER(struct draft, member, store)
#define IN_FAULT(member, store) MEMBER(struct fault_draft, member, store)
#define LIST(type, values, count) \
    {STORE_LIST, offsetof(type, values), sizeof ((type *)0)->values, offsetof(type, count)}
#define DRAFT_LIST(values, count) LIST(struct draft, values, count)
#define AT(list) LIST(struct fault_draft, entry.list.values, entry.list.count)

/* Each form of line is written out: a target holds commas and can't be handed from one macro to the next. */
#define ROW(p, form, w) .path = p, .type = form, .unit = "", .what = w
#define RANGE(l, h) .low = l, .high = h
#define SECTION(p, w) {ROW(p, KEY_SECTION, w), .fallback = "="},
#define SECTIONS(p, most, w) {ROW(p, KEY_SECTIONS, w), .fallback = "=", .count_max = most},
#define INTEGER(p, t, d, l, h, now, u, w) \
    {.path = p, .type = KEY_INTEGER, .target = t, .fallback = d, RANGE(l, h), .there = now, .unit = u, .what = w},
#define REAL(p, t, d, l, h, now, u, w) \
    {.path = p, .type = KEY_REAL, .target = t, .fallback = d, RANGE(l, h), .there = now, .unit = u, .what = w},
#define NULLABLE_REAL(p, t, d, l, h, now, u, w) \
    {.path = p, .type = KEY_REAL, .nullable = true, .target = t, .fallback = d, RANGE(l, h), .there = now, .unit = u, \
     .what = w},
#define FLAG(p, t, d, now, w) {ROW(p, KEY_FLAG, w), .target = t, .fallback = d, .there = now},
#define TEXT(p, t, d, h, now, w) {ROW(p, KEY_TEXT, w), .target = t, .fallback = d, .high = h, .there = now},
#define NULLABLE_TEXT(p, t, d, h, now, w) \
    {ROW(p, KEY_TEXT, w), .nullable = true, .target = t, .fallback = d, .high = h, .there = now},
#define CHOICE(p, t, d, o, now, w) {ROW(p, KEY_CHOICE, w), .target = t, .fallback = d, .options = o, .there = now},
#define NAME CHOICE
#define INTEGERS(p, t, d, l, h, most, now, w) \
    {ROW(p, KEY_INTEGERS, w), .target = t, .fallback = d, RANGE(l, h), .count_max = most, .there = now},
#define COUNTED_INTEGERS(p, values, count, l, h, most, w) \
    {ROW(p, KEY_INTEGERS, w), .target = LIST(struct draft, values, count), .fallback = "[]", RANGE(l, h), \
     .count_max = most},
#define ONE_OR_MORE(p, t, l, h, now, w) \
    {ROW(p, KEY_ONE_OR_MORE, w), .target = t, .fallback = "=everywhere", RANGE(l, h), .count_max = AT_MAX, \
     .there = now},
#define REALS(p, t, d, l, h, most, now, w) \
    {ROW(p, KEY_REALS, w), .target = t, .fallback = d, RANGE(l, h), .count_max = most, .there = now},
#define TEXTS(p, h, most, w) {ROW(p, KEY_TEXTS, w), .fallback = "[]", .high = h, .count_max = most},
#define EXPRESSION(p, d, h, w) {ROW(p, KEY_EXPRESSION, w), .fallback = d, .high = h},

static const struct key keys[] = {
#include "scenarios/keys.def"
};

int key_count(void)
{
    return (int)(sizeof keys / sizeof keys[0]);
}

const struct key *key_at(int i)
{
    return i >= 0 && i < key_count() ? &keys[i] : NULL;
}

const struct key *key_find(const char *path)
{
    for (int i = 0; i < key_count(); i++) {
        if (!strcmp(keys[i].path, path)) return &keys[i];
    }
    return NULL;
}

int key_children(const char *section, const char *ret_names[KEY_CHILDREN_MAX])
{
    size_t length = strlen(section);
    int count = 0;
    for (int i = 0; i < key_count() && count < KEY_CHILDREN_MAX; i++) {
        const char *name = keys[i].path;
        if (length) {
            if (strncmp(name, section, length) != 0 || name[length] != '.') continue;
            name += length + 1;
        }
        if (!strpbrk(name, ".[")) ret_names[count++] = name;
    }
    return count;
}

const struct key *key_elsewhere(const char *name)
{
    for (int i = 0; i < key_count(); i++) {
        const char *last = strrchr(keys[i].path, '.');
        if (!strcmp(last ? last + 1 : keys[i].path, name)) return &keys[i];
    }
    return NULL;
}

/* ---- choices ---- */

static bool registry_choice_at(const char *name, int i, char ret_name[CHOICE_TEXT])
{
    const char *found = NULL;
    if (!strcmp(name, "schedules")) {
        found = i < schedule_count() ? schedule_at(i)->name : NULL;
    } else {
        for (int a = 0; a < collective_algorithm_count() && !found; a++) {
            const struct collective_algorithm *algorithm = collective_algorithm(a);
            if (!strcmp(algorithm->op, name) && i-- == 0) found = algorithm->name;
        }
    }
    if (found) snprintf(ret_name, CHOICE_TEXT, "%s", found);
    return found != NULL;
}

bool choice_at(const char *list, int i, char ret_name[CHOICE_TEXT])
{
    if (*list == '@') return registry_choice_at(list + 1, i, ret_name);
    for (; i > 0 && list; i--) {
        list = strchr(list, '|');
        if (list) list++;
    }
    if (!list || !*list) return false;
    snprintf(ret_name, CHOICE_TEXT, "%.*s", (int)strcspn(list, "|"), list);
    return true;
}

int choice_find(const char *list, const char *name)
{
    char choice[CHOICE_TEXT];
    for (int i = 0; choice_at(list, i, choice); i++) {
        if (!strcmp(choice, name)) return i;
    }
    return -1;
}

/* ---- what is allowed ---- */

static void add_range(const struct key *key, const char *one, struct phrase *phrase)
{
    if (key->low <= -1e300 && key->high >= 1e300) phrase_add(phrase, "%s", one);
    else phrase_add(phrase, "%s from %.16g to %.16g", one, key->low, key->high);
}

static void add_choices(const char *list, struct phrase *phrase)
{
    char choice[CHOICE_TEXT], next[CHOICE_TEXT];
    for (int i = 0; choice_at(list, i, choice); i++) {
        const char *between = i == 0 ? "" : choice_at(list, i + 1, next) ? ", " : " or ";
        phrase_add(phrase, "%s'%s'", between, choice);
    }
}

void key_allowed(const struct key *key, char *text, size_t size)
{
    struct phrase phrase = {text, size, 0};
    text[0] = 0;
    switch (key->type) {
    case KEY_SECTION: phrase_add(&phrase, "an object"); break;
    case KEY_SECTIONS: phrase_add(&phrase, "a list of at most %d objects", key->count_max); break;
    case KEY_INTEGER: add_range(key, "an integer", &phrase); break;
    case KEY_REAL: add_range(key, "a number", &phrase); break;
    case KEY_FLAG: phrase_add(&phrase, "true or false"); break;
    case KEY_TEXT: phrase_add(&phrase, "a string of at most %.0f bytes", key->high); break;
    case KEY_CHOICE: add_choices(key->options, &phrase); break;
    case KEY_INTEGERS:
        phrase_add(&phrase, "a list of at most %d integers", key->count_max);
        add_range(key, "", &phrase);
        break;
    case KEY_ONE_OR_MORE:
        add_range(key, "an integer", &phrase);
        phrase_add(&phrase, ", or a list of 1 to %d of them", key->count_max);
        break;
    case KEY_REALS:
        phrase_add(&phrase, "a list of %d numbers", key->count_max);
        add_range(key, "", &phrase);
        break;
    case KEY_TEXTS:
        phrase_add(&phrase, "a list of at most %d strings of at most %.0f bytes", key->count_max, key->high);
        break;
    case KEY_EXPRESSION:
        phrase_add(&phrase, "a number, or an expression of at most %.0f bytes such as '1/M'", key->high);
        break;
    }
    if (key->nullable) phrase_add(&phrase, ", or null");
}
