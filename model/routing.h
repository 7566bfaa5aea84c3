/* routing: what the router of a layer is given by its run beside weights, and what is noted of what it did.
 *
 * CELLS. Auxiliary losses and capacities are taken over the tokens of one micro-batch of one data rank, so they depend on
 * how the batch is cut. A run computes them for the cells of its loss cut (model/loss_convention.h): a micro-batch of a
 * parallel run is one cell, the standalone run's holds all of them, in the order of sequences. */
#ifndef MODEL_ROUTING_H
#define MODEL_ROUTING_H

#include <stdbool.h>
#include <stdint.h>

/* ---- expert parallelism ----
 * Rows on their way to other ranks' experts and back, by tags (below). all_to_all: HOME and GRAD_HOME, SENT and GRAD_SENT are of
 * own rows, one by one; all_gather and replicated: of own tokens, whose rows' results come home summed (SENT: nothing is noted
 * that `normed` does not say). READ and GAVE: of the rows that the rank's experts compute, in the order of experts; ARRIVED and
 * LEAVES (all_to_all): the same rows in the order of ranks. */
enum dispatch_stage { DISPATCH_SENT, DISPATCH_ARRIVED, DISPATCH_READ, DISPATCH_GAVE, DISPATCH_LEAVES, DISPATCH_HOME, DISPATCH_GRAD_SENT,
                      DISPATCH_GRAD_ARRIVED, DISPATCH_GRAD_READ, DISPATCH_GRAD_GAVE, DISPATCH_GRAD_LEAVES, DISPATCH_GRAD_HOME, DISPATCH_STAGES };
struct dispatch_fact {
    int members, me;                        /* of the expert-parallel group; 0: there is none */
    const int *ranks;                       /* [members] */
    int copies; const int *copy_ranks;      /* tp ranks with the same tokens that share them out; 0: nobody */
    bool one_by_one, everywhere;            /* all_to_all; replicated */
    int first, experts;                     /* of this rank */
    int64_t first_token, tokens;            /* whose rows it sends */
    const int64_t *sent;                    /* [experts of the model]: own rows */
    const int64_t *arrived;                 /* [members * experts]: rows that it takes to be from each member */
    const int64_t *returned;                /* [members]: rows whose gradient it sends back to each; NULL: all_gather, replicated, or not yet */
    int64_t rows[DISPATCH_STAGES];
    const double *tags[DISPATCH_STAGES];    /* NULL: not noted */
    const double *sizes[DISPATCH_STAGES];   /* the same sums, of magnitudes: what roundings are relative to; of GAVE, GRAD_SENT and GRAD_GAVE */
    const double *gathered;                 /* [tokens of the micro-batch]: copies: tags of what all runs' experts add to the tokens' gradient */
    const double *weight, *gate;            /* [rows that its experts compute], not one by one: a row's weight; the gradient of it */
};

/* Inner products with one fixed vector stand for rows: equal rows have equal tags, and tags add as rows do. */
struct routing_fact {
    int step, microbatch, unit, first_sequence /* due, of the step */;
    int64_t tokens;
    const int32_t *positions;               /* [tokens]: of each in its sequence, where context parallelism splits those; NULL: in order */
    int experts, top_k, cells;
    const int64_t *cell_first;              /* [cells + 1]: tokens */
    const int64_t *load;                    /* [experts]: own rows that an expert computed, wherever it is */
    const int64_t *computed;                /* [experts]: rows that this rank computed, whosever they are */
    struct dispatch_fact dispatch;
    const int64_t *counted;                 /* [experts]: what this micro-batch added to the counts behind the bias; NULL: no bias */
    int64_t dropped;                        /* pairs of (token, choice) that found no room */
    /* One a cell: the auxiliary losses, and what their gradient was multiplied by (0 before the backward). */
    const double *aux, *z;
    double *aux_scale;
    bool backward;
    int64_t padding_rows, padding_dirty;    /* behind experts' own rows (row_alignment): all; those that were not zero */
    /* The rest only where there was memory for it (whole). */
    bool whole;
    const double *bias;                     /* [experts] as the choice read it; NULL: none */
    const double *logits, *score;           /* [tokens * experts] */
    const int32_t *chosen;                  /* [tokens * top_k] */
    const uint8_t *kept;                    /* [tokens * top_k] */
    const double *weight;                   /* [tokens * top_k], before anything is dropped where capacity comes last */
    const uint8_t *followed;                /* [tokens]: what was taken over (FOLLOWED_) of routing_choices; NULL: nothing */
    int64_t rows;                           /* in the order of experts */
    const int64_t *first;                   /* [experts + 1]: whose rows they were when they were sorted */
    const int64_t *bounds;                  /* [experts + 1]: whose weights they were multiplied with */
    const int32_t *slot, *from, *back;      /* [rows]: token * top_k + choice that it is; token it was gathered from; slot its result went to */
    int64_t seen_first, seen_tokens;        /* the tokens whose rows went out from here one by one and came back: without expert parallelism all */
    const double *in, *out;                 /* [rows]: tags of what an expert read and gave, of rows of those tokens */
    const double *out_size;                 /* [rows]: the same sum of what it gave, of magnitudes */
    const double *routed_size, *shared_size; /* [tokens]: of magnitudes; the latter NULL as `shared` */
    const double *normed, *routed;          /* [tokens]: tags of what all experts were offered, and of what they gave together */
    const double *shared, *added;           /* [tokens]: tags of the shared expert's output, and of what it and `routed` are together; NULL: there is none */
    const double *gate_due;                 /* [tokens * top_k]: from the backward on: <an expert's output, the gradient of the sum> */
    const double *gate;                     /* what the router's backward was given for it */
};

/* Have in, out and out_size something to say of a row? */
static inline bool routing_row_is_seen(const struct routing_fact *fact, int32_t slot)
{
    int64_t token = slot / fact->top_k;
    return token >= fact->seen_first && token < fact->seen_first + fact->seen_tokens;
}
/* Choices of another run of the same scenario, which a router takes over where its own is a near tie (router_follow.c). */
struct routing_choices {
    int units;
    double near_tie;                        /* how far a logit may be moved, relative to the largest of its token */
    /* [steps * units]: [tokens of the step * top_k], -1 first where nothing is known of a token; NULL: not a router */
    const int32_t *const *chosen;           /* the router's */
    const int32_t *const *own;              /* the balancing loss' own; NULL: none */
    const uint8_t *const *kept;             /* did chosen's find room? 2: not known; NULL: there is room for all */
};
enum { FOLLOWED_CHOICE = 1, FOLLOWED_OWN = 2, FOLLOWED_ROOM = 4 };

/* The selection bias of a layer at the end of a step. */
struct balance_fact {
    int step, unit, experts;
    int updates;                            /* how often the bias was updated */
    const double *counted, *summed;         /* [experts]: of this rank's step; over the data ranks */
    const double *before, *after;           /* [experts] */
};

struct factor_numbers;
/* A layer's part of its rank's state; one micro-batch. NULL in a layer_context: one cell, no bias, nobody counts. */
struct router_run {
    const double *bias;                     /* [experts]; NULL: none */
    double *counts;                         /* [experts]: += chosen tokens; NULL: none */
    int cells;
    const int64_t *cell_first;              /* [cells + 1] */
    const double *aux_scale;                /* [cells]: what an auxiliary loss' gradient is to be multiplied by */
    const bool *padding;                    /* [tokens]; NULL: no token is padding */
    const int32_t *follow_chosen, *follow_own; /* [tokens * top_k] of routing_choices; NULL: none to follow */
    const uint8_t *follow_kept;             /* beside follow_chosen; NULL: nothing known */
    double near_tie;
    const struct factor_numbers *numbers;   /* of the run, for factors */
    struct routing_fact *fact;              /* filled; NULL: nobody looks */
    struct arena *fact_arena;
};

#endif
