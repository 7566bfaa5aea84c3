/* scenario: an experiment as validated data: what is run, which faults, what is expected. */
#ifndef SCENARIOS_SCENARIO_H
#define SCENARIOS_SCENARIO_H

#include "model/config.h"
#include "scenarios/fault.h"
#include "sim/error.h"

enum verdict { VERDICT_CONSISTENT, VERDICT_DIVERGED, VERDICT_VIOLATED, VERDICT_DEADLOCK };
extern const char *const verdict_names[];

enum fault_run { FAULT_IN_PARALLEL, FAULT_IN_STANDALONE, FAULT_IN_BOTH };

/* One entry of "faults": a name of the catalogue or a primitive (site, do). */
struct fault_entry {
    char name[64];                 /* catalogue id, or "site:deviation" for a primitive */
    const struct fault *fault;     /* NULL for a primitive */
    const struct site *site; const struct deviation *deviation; /* primitive only */
    struct at_list rank, stage, step, microbatch, layer, hop;
    char param[96];
    char text[96]; double value; bool has_value; /* "factor", "group", "format", "value" ... */
    const char *argument;          /* which of these was given; NULL: none, so that the fault's own holds */
    bool once;
    enum fault_run in;
};
enum { FAULTS_MAX = 16, EXPECT_CHECKS_MAX = 16, EXPECT_RANKS_MAX = 256 };

struct expectation {
    bool given;                    /* else: consistent */
    enum verdict verdict;
    char component[64], site[64];  /* "" = any */
    int ranks_count, ranks[EXPECT_RANKS_MAX];      /* 0 = any */
    int checks_count; char checks[EXPECT_CHECKS_MAX][48]; /* each must fail; 0 = any */
};

struct scenario {
    char file[1024], name[128];
    struct run_config config;      /* layout is the parallel one */
    int faults_count; struct fault_entry faults[FAULTS_MAX];
    struct expectation expect;
    uint8_t *text;                 /* owned; config.data.text points here */
    char text_path[1024];
    struct plugin *plugin;         /* owned; config.plugin points to it; NULL: none */
};

/* A --set PATH=VALUE. */
struct plugin_watch;
struct override { const char *path, *value; };
/* --fault NAME[@key=value,...]; NAME may be site:deviation. */
struct scenario_options {
    int overrides_count; const struct override *overrides;
    int faults_count; const char *const *faults;  /* added to the file's own */
    bool no_faults;                               /* drops the file's own */
    bool seed_given; uint64_t seed;
    struct plugin_watch *watch;                   /* where a plug-in's doings are noted (model/plugin/watch.h); may be NULL */
};

/* NULL and an error (file, line, column, key path, found, allowed, hint) for anything wrong. Caller owns. */
struct scenario *scenario_load(const char *path, const struct scenario_options *options, struct error *error);
void scenario_free(struct scenario *scenario); /* accepts NULL */
/* Does it name a plug-in, with these options? False too where it cannot be read: loading it says why. */
bool scenario_has_plugin(const char *path, const struct scenario_options *options);

/* The JSON Schema of scenario files (draft 2020-12), generated from the table that the loader reads by. malloc'd. */
char *scenario_schema(void);

/* The site plan of one run (parallel or standalone); the caller owns it. Faults become armed deviations in
 * their order; armed.fault is the index into scenario->faults. */
struct site_plan *scenario_plan(const struct scenario *scenario, bool standalone, int ranks, struct error *error);

#endif
