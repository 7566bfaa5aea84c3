/* context_variations: the attention of a scenario once more, forward or backward, with a thing changed whose effect is known.
 *
 * All in fp64, on the inputs as they were rounded, with the scenario's faults armed as they are. What comes of it reads outputs
 * alone, so it holds of an attention whose inside nobody sees (a plug-in).
 *
 *   influence    one value row, then one key row, NaN: exactly the queries that may see that key change, by bits
 *   mass         values that say whose they are (one column a member): what comes out is the share of the softmax that a
 *                member's keys got
 *   lse          logits up to 1,000, and rows that see nothing: out and lse against the reference
 *   gradient     the cotangent of one token alone: dk, dv exactly 0 where it does not see, right elsewhere, on their owner;
 *                and the derivative along one direction by differences
 *   flags        causal, window, documents on and off */
#ifndef SCENARIOS_CONTEXT_VARIATIONS_H
#define SCENARIOS_CONTEXT_VARIATIONS_H

#include "model/attention_run.h"
#include "scenarios/context_compare.h"
#include "scenarios/result.h"

/* Of query chunk (member) r and key chunk c of one group; the chunk behind the last member's is the joint rows'. */
struct influence_cell { int64_t due, changed, missing, extra; int64_t query, key, sequence; /* the first wrong pair */ };
struct influence_group {
    struct influence_cell *cells;     /* [chunks of queries][chunks of keys] */
    int64_t elsewhere;                /* pairs of different positions that did change */
    int64_t partly;                   /* keys that some queries of a chunk see and others that may do not */
    int64_t missing_behind;           /* missing pairs whose key is behind the query */
    int64_t extra_behind, extra_window, extra_documents; /* extra pairs by what hides them: the future, the window, another document */
};
struct influence {
    int chunks, groups;               /* chunks: members, and one more where there are joint rows */
    int64_t keys, runs;               /* probed; of the sequences of all groups */
    bool exhaustive;
    struct influence_group *of;       /* [groups]: dp_replicate of them */
    int64_t foreign, foreign_sequence; /* rows that changed in other sequences */
    int64_t foreign_group;            /* of these: in sequences of another group */
    bool failed;                      /* a run did not finish */
};
struct mass {
    int chunks;                       /* as above */
    double *got, *due;                /* [rank][chunk]: mean over the rank's rows and heads */
    double *worst;                    /* [rank][chunk]: largest difference on one row */
    double *total;                    /* [rank]: what all chunks got together; due: 1, less the sinks' */
    double *total_due;
    double *multiple, *spread;        /* [rank][chunk]: how many times a chunk's due weight, against the rank's own chunk's (or the first there is): geometric
                                         mean over rows and heads, and the deviation of its logs; NAN: no row has both */
    double *block_total, *block_spread; /* [rank]: what a block's keys get together on a row that sees several, mean over rows; largest difference of two of them on
                                         one row: 0 where blocks are not weighed. The own block has the joint keys. NAN: no such row, or not made */
    double exponent, misfit;          /* got weights of chunks as powers of the due ones, over the ranks where any is wrong: 1 right, 0 a plain average; NAN:
                                         nothing to fit. misfit: rms of logs */
    bool failed;
};
struct lse_pass { const char *what; double out_error, lse_error, limit; int rank; int64_t sequence, position; bool failed, finite; };
struct gradient_pass {
    int64_t sequence, token;
    int64_t leaks; int leak_rank; int64_t leak_position;  /* dk or dv not exactly 0 where the token does not see */
    double dq, dk, dv;                /* worst relative error of a member */
    int dq_rank;                      /* whose dq is off the most */
    int member;                       /* who holds the token */
    int wrong_rank, wrong_ranks;      /* the first whose dk or dv is wrong (-1), and how many */
    int landed;                       /* whose due gradient that rank has; -1: nobody's */
    int next, mirrored;               /* of these ranks: how many have that of the next member; that of the member as far on the token's other side */
    bool failed;
};
struct direction_pass { bool made; double analytic, numeric, terms, error; };
enum flag_kind { FLAG_CAUSAL, FLAG_WINDOW, FLAG_DOCUMENTS, FLAG_KINDS };
extern const char *const flag_names[FLAG_KINDS];
struct flag_pass {
    bool made, refused; char why[320];
    bool on;                          /* what it was turned to */
    double error, *of_rank;           /* of the changed run from the changed reference, over all rows; over those of each rank */
    double due, got;                  /* how far reference and run moved, relative */
    bool ignored;                     /* the run did not move at all, and the reference did */
    bool failed;
};
enum { LSE_PASSES = 2, GRADIENT_PASSES_MAX = 8 };
struct context_variations {
    struct influence value_rows, key_rows;
    struct mass mass;
    struct lse_pass lse[LSE_PASSES]; int lse_count;
    struct gradient_pass gradient[GRADIENT_PASSES_MAX]; int gradient_count;
    struct direction_pass direction;
    struct flag_pass flag[FLAG_KINDS];
    double alone;                     /* relative error of out on one rank (cp 1, the same faults); NAN: not made, or it was made on one */
    struct arena *arena;
};

/* Makes an attention: the scenario's own (attention_run), or somebody else's. NULL: did not run (error), or was stopped. */
typedef struct record *context_runner(void *context, const struct run_config *config, const struct attention_inputs_data *inputs, struct error *error);

/* which: of the parts below. NULL: the environment's fault, or stopped. Caller owns. */
enum { VARY_INFLUENCE = 1, VARY_MASS = 2, VARY_LSE = 4, VARY_GRADIENT = 8, VARY_FLAGS = 16, VARY_ALL = 31 };
struct context_variations *context_variations_new(const struct run_config *config, const struct attention_inputs_data *inputs, unsigned which,
                                                  context_runner *run, void *context, const struct train_options *options, struct error *error);
void context_variations_free(struct context_variations *variations);   /* accepts NULL */

#endif
