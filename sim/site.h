/* site: a named place where real systems go wrong; the one seam for faults, probes and counts.
 *
 * sim/ holds the mechanism only. Each floor declares its sites in its own table (a .def file) and
 * holds the bodies of the deviations its sites can have. In a healthy run a site is the identity. */
#ifndef SIM_SITE_H
#define SIM_SITE_H

#include <stdbool.h>
#include <stdint.h>

enum site_kind { SITE_COMMUNICATION, SITE_FACTOR, SITE_DECISION, SITE_TENSOR, SITE_MEMORY, SITE_KIND_COUNT };
extern const char *const site_kind_names[SITE_KIND_COUNT];

enum site_facet {           /* what a site has and a deviation needs, as bits */
    FACET_REDUCES = 1, FACET_ROOTED = 2, FACET_POINT_TO_POINT = 4, FACET_ASYNCHRONOUS = 8,
    FACET_GUARDED = 16, FACET_COMPARES_INDEX = 32, FACET_MERGES = 64, FACET_DIFFERENTIABLE = 128,
    FACET_LOGARITHMIC = 256, FACET_AXES = 512, FACET_BLOCKS = 1024 /* several results into one */, FACET_MODE = 2048 /* asks for a mode first */,
};

struct site {
    const char *name;        /* "pp.loss.scale" */
    enum site_kind kind;
    const char *component;   /* what a diagnosis calls this place, "pp.loss" */
    unsigned facets;
    const char *what;        /* one sentence */
};

struct deviation {
    const char *name;        /* "times" */
    enum site_kind kind;
    unsigned needs;          /* facets a site must have */
    const char *what;
};

/* Where a site is passed. -1: does not apply here. */
struct where { int rank, stage, step, microbatch, layer, hop; const char *param; };
#define WHERE_NONE ((struct where){-1, -1, -1, -1, -1, -1, 0})

/* A deviation that is switched on. A set of -1-terminated lists; an empty list means everywhere. */
enum { AT_MAX = 32 };
struct at_list { int count; int values[AT_MAX]; };
struct armed {
    const struct site *site;
    const struct deviation *deviation;
    struct at_list rank, stage, step, microbatch, layer, hop;
    char param[96];          /* "" everywhere */
    bool once;               /* per rank: only at its first hit */
    char text[96];           /* the deviation's argument: a factor such as "1/M", a group, a format */
    double value;            /* its number, where it takes one */
    int fault;               /* index into the scenario's list of faults; for counting hits only */
};

/* The deviations of one run. Hits are counted a rank, so that threads do not share a counter. */
struct site_plan {
    int armed_count, ranks;
    struct armed *armed;
    uint32_t *hits;          /* [armed_count * ranks] */
    uint32_t *covered;       /* the same: due where one armed before it was, which alone acts */
    bool *stuck;             /* the same: a decision that was true before */
};

struct site_plan *site_plan_new(int ranks);              /* caller owns */
void site_plan_free(struct site_plan *plan);             /* accepts NULL */
void site_plan_arm(struct site_plan *plan, const struct armed *armed);   /* copied; before the run */
/* The first armed deviation that is due here, counted as hit; NULL in a healthy run. plan may be NULL. */
const struct armed *site_pass(struct site_plan *plan, const struct site *site, struct where where);
/* The same without counting, for code that must know beforehand. */
const struct armed *site_peek(const struct site_plan *plan, const struct site *site, struct where where);
/* Was the value true at this deviation on this rank, now or at any time before? */
bool site_stick(struct site_plan *plan, const struct armed *armed, int rank, bool value);
uint64_t site_hits(const struct site_plan *plan, int armed_index);
/* How often it would have been hit had not another deviation of the same site, armed before it, been due there too. */
uint64_t site_covered(const struct site_plan *plan, int armed_index);

#endif
