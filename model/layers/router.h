/* router: see router.c. */
#ifndef MODEL_LAYERS_ROUTER_H
#define MODEL_LAYERS_ROUTER_H

#include "model/layers/layers.h"

struct routing {
    struct tensor score;            /* [T, experts] */
    struct tensor picked, weight;   /* [T, top_k]: scores of the chosen; what their outputs are multiplied by */
    double scaling;
    int32_t *chosen;                /* [T * top_k]: experts of a token by falling score, of equal ones the lower first */
    /* The chosen (token, expert) pairs in the order of experts, within an expert of tokens. */
    int64_t rows;
    int32_t *token, *slot;          /* [rows]; slot = token * top_k + choice */
    int64_t *first;                 /* [experts + 1]: an expert's rows are first[e] .. first[e + 1] - 1 */
};

/* logits [T, experts]. */
void router_forward(const struct layer_context *context, struct routing *routing, struct tensor logits, struct arena *arena);
/* d_weight [T, top_k] -> d_logits [T, experts]. */
void router_backward(const struct layer_context *context, const struct routing *routing, struct tensor d_weight, struct tensor d_logits);

#endif
