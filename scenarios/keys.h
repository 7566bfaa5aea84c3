/* keys: the one table of all keys that a scenario file may have (keys.def). The loader reads by it, the JSON Schema
 * is written from it, misspelt keys are compared with it. */
#ifndef SCENARIOS_KEYS_H
#define SCENARIOS_KEYS_H

#include <stddef.h>
#include "scenarios/scenario.h"

enum key_type {
    KEY_SECTION,      /* an object whose members have lines of their own */
    KEY_SECTIONS,     /* a list of such objects: path "faults", members "faults[].x" */
    KEY_INTEGER, KEY_REAL, KEY_FLAG,
    KEY_TEXT,         /* a string of at most `high` bytes */
    KEY_CHOICE,       /* a string, one of `options` */
    KEY_INTEGERS,     /* a list of integers, at most count_max */
    KEY_ONE_OR_MORE,  /* an integer or a list of them, one at least */
    KEY_REALS,        /* exactly count_max numbers */
    KEY_TEXTS,        /* a list of strings, each of at most `high` bytes */
    KEY_EXPRESSION,   /* a number or a string */
};
enum key_store { STORE_NOTHING, STORE_INT, STORE_U64, STORE_DOUBLE, STORE_BOOL, STORE_TEXT, STORE_INDEX, STORE_LIST };

/* Where a value goes: into struct draft, or, for faults[].x, into struct fault_draft. */
struct key_target {
    enum key_store store;
    size_t offset, bytes, count_offset; /* count_offset: STORE_LIST, an int; 0: none */
};

struct key {
    const char *path;        /* "parallel.pipeline.schedule", "faults[].at.rank" */
    enum key_type type;
    bool nullable;
    struct key_target target;
    const char *fallback;    /* the default as JSON; "=how" where it is computed, or what being absent means */
    double low, high;        /* INTEGER, REAL and lists of them: range; TEXT: high = bytes */
    int count_max;           /* lists */
    const char *options;     /* CHOICE: "a|b", or "@op": the algorithms of a collective */
    const char *there;       /* NULL: all. "a|b": what is implemented; "@schedules": by registry; "": the default alone */
    const char *unit;        /* "us", "" */
    const char *what;        /* one phrase */
};

/* What a file says, before it is put in order: the scenario, and values that need another form there. */
enum { PRECISION_KEYS = 8 };
struct draft {
    struct scenario scenario;
    double betas[2];
    int send;                         /* async, sync */
    int precision[PRECISION_KEYS];    /* index into the list of formats, in the order of keys.def */
    int arch, mla_head_dim;           /* mla_head_dim 0: not given */
    int dense_layers[LAYERS_MAX], dense_layers_count;
    int micro_batch_size;             /* 0: not given */
    int score_format;                 /* storage, bf16 */
    int merge_order, joint_place;     /* linear, tree; front, rear */
    char weights[512], text[512];     /* as written: relative to the scenario file */
};
struct fault_draft {
    struct fault_entry entry;
    char fault[64], site[64], deviation[64], group[64], op[64], format[64];
    int index, in;
};

int key_count(void);
const struct key *key_at(int i);
const struct key *key_find(const char *path); /* NULL: none */
/* Is there a line for the section or list `path` itself ("" = the whole file)? */
enum { KEY_CHILDREN_MAX = 64 };
/* Names of the keys directly in a section, in the order of the table. */
int key_children(const char *section, const char *ret_names[KEY_CHILDREN_MAX]);
/* A key elsewhere whose last name is this one; NULL: none. */
const struct key *key_elsewhere(const char *name);

/* The i-th of "a|b|c", "@op" or "@schedules"; false: no more. */
enum { CHOICE_TEXT = 48 };
bool choice_at(const char *list, int i, char ret_name[CHOICE_TEXT]);
int choice_find(const char *list, const char *name); /* -1: none */

/* "an integer from 1 to 1024", "'documents' or 'stream'"; into text, always terminated. */
void key_allowed(const struct key *key, char *text, size_t size);

/* ---- key_words.c ---- */
enum { KEY_WORDS = 512 };
const char *key_default(const struct key *key, char text[KEY_WORDS]);  /* JSON, or how it is found */
const char *key_there(const struct key *key, char text[KEY_WORDS]);    /* "so far only train"; "" where all is there */
const char *key_example(const struct key *key, char text[KEY_WORDS]);  /* "--set parallel.pp=2"; "" for none */
/* The key that was meant by "faults.0.at.step"; NULL: none. */
const struct key *key_look_up(const char *typed);
bool key_is_within(const struct key *key, const struct key *section);
/* Which keys a wrong one may have meant. */
void key_hint(const char *typed, char *text, size_t size);

#endif
