/* router: see router.c. */
#ifndef MODEL_LAYERS_ROUTER_H
#define MODEL_LAYERS_ROUTER_H

#include "model/layers/layers.h"

/* What the sites let through in the forward; the backward follows it. */
struct router_choices {
    bool over_experts;              /* scores: softmax over the experts */
    bool over_choices;              /* weights: normalized over a token's choices */
    bool after_drop;                /* weights: normalized over those that found room */
    bool unbiased;                  /* weights come from scores without the bias */
    bool own_score;                 /* auxiliary loss: from the router's score function */
};

struct routing {
    struct tensor logits, score;    /* [T, experts] */
    struct tensor picked, weight;   /* [T, top_k]: scores of the chosen; what their outputs are multiplied by */
    double scaling;
    struct router_choices as;
    int32_t *chosen;                /* [T * top_k]: experts of a token by falling score, of equal ones the lower first */
    bool *kept;                     /* [T * top_k]: found room; NULL: all did */
    bool *lost;                     /* [T * top_k]: kept, but has no row; NULL: none */
    int64_t dropped;
    uint8_t *followed;              /* [T]: what was taken over from another run; NULL: nothing to follow */
    /* The kept (token, expert) pairs in the order of experts, within an expert of tokens. */
    int64_t rows;
    int32_t *token, *slot;          /* [rows]; slot = token * top_k + choice */
    int64_t *first;                 /* [experts + 1]: an expert's rows are first[e] .. first[e + 1] - 1 */
    int64_t *bounds;                /* the same, as they are multiplied with the experts' weights */
    int32_t *from;                  /* [rows]: token that a row is a copy of */
    int32_t *back_token, *back_slot;/* [rows]: where an expert's result belongs */
    /* Auxiliary losses, one a cell. */
    int cells;
    int64_t *cell_first;            /* [cells + 1] */
    int64_t *cell_tokens;           /* [cells]: that are not padding */
    int64_t *aux_counts;            /* [cells * experts]: tokens that the auxiliary loss sees an expert have */
    struct tensor own, lse;         /* [T, experts]: what the balancing loss makes of the logits, undivided; [T]: their log-sum-exp */
    double *aux_factor, *aux, *z;   /* [cells]: value = factor * sum over experts of (sum of p) * count */
};

/* logits [T, experts], which must stay. */
void router_forward(const struct layer_context *context, struct routing *routing, struct tensor logits, struct arena *arena);
/* d_weight [T, top_k] -> d_logits [T, experts], auxiliary losses' gradients included. */
void router_backward(const struct layer_context *context, const struct routing *routing, struct tensor d_weight, struct tensor d_logits);

/* ---- parts of it ---- */
static inline const struct factor_numbers *router_numbers(const struct layer_context *context)
{
    return context->router ? context->router->numbers : NULL;
}
static inline double router_get(struct tensor t, int64_t i) { return format_get(t.data, (size_t)i, t.storage); }
static inline void router_set(struct tensor t, int64_t i, double value) { format_set(t.data, (size_t)i, t.storage, value); }
/* Of a slice's cells to those of the whole sequences; nothing where all tokens are here. router_slices.c */
void router_sum_counts(const struct layer_context *context, struct routing *routing);
/* `own` pairs at the front of by and chosen, which have room for all slices': to all of them, in the order of sequences. */
void router_gather_pairs(const struct layer_context *context, double *by, int32_t *chosen, int64_t own);
/* The same of the first token of one of this rank's sequences, which may be one behind the last. */
int64_t router_token_among_all(const struct layer_context *context, int64_t token);
/* Where a member's pair stands among them. */
int64_t router_pair_among_all(const struct layer_context *context, int member, int64_t pair);
/* A row of an expert: which of the chosen ones keep theirs. router_capacity.c */
void router_drop(const struct layer_context *context, struct routing *routing, struct tensor by, struct arena *arena);
/* Rows in the order of experts, and where they come from and go to. router_order.c */
void router_order(const struct layer_context *context, struct routing *routing, struct arena *arena);
/* Values, counts and factors; their gradient added to d_logits. router_auxiliary.c */
void router_auxiliary(const struct layer_context *context, struct routing *routing, struct arena *arena);
void router_auxiliary_backward(const struct layer_context *context, const struct routing *routing, struct tensor d_logits);
/* The rule of one token: by keys, of which those outside the best groups become -infinity; work: [experts] each. */
struct router_work { double *key, *group_score; int32_t *order, *attempt; };
struct router_work router_work_new(const struct layer_context *context);
void router_choose(const struct moe_config *moe, const struct router_work *work, bool lower_first, int32_t *ret_chosen);
/* A near tie: the other run's choice in the place of `chosen`. keys: scores with bias; for the balancing loss logits. router_follow.c */
void router_follow_choice(const struct layer_context *context, struct routing *routing, int64_t t, const double *keys, const struct router_work *work, int32_t *chosen);
void router_follow_own(const struct layer_context *context, struct routing *routing, int64_t t, const double *logits, const struct router_work *work, int32_t *chosen);
/* The same of who has room; by: what they were kept by. */
void router_follow_room(const struct layer_context *context, struct routing *routing, struct tensor by);
/* The k largest of `values`, of equal ones the lower first; what is not a number is smaller than all. */
void router_top(const double *values, int count, int k, bool lower_first, int32_t *ret_chosen);

#endif
