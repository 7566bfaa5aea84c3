/* moe_note: see moe_note.c. Where nobody looks (no context->router, or no fact there) nothing is done. */
#ifndef MODEL_LAYERS_MOE_NOTE_H
#define MODEL_LAYERS_MOE_NOTE_H

#include "model/layers/dispatch.h"

void moe_note_forward(const struct layer_context *context, const struct routing *routing, const struct dispatch *d, struct tensor normed, struct tensor routed);
/* The shared expert's output; then what it and the others' are together (added). */
void moe_note_shared(const struct layer_context *context, struct tensor rows, bool added);
/* Rows on their way, where there is expert parallelism: their tags. */
void moe_note_rows(const struct layer_context *context, enum dispatch_stage stage, struct tensor rows);
/* How many it sends back to each member, of their gradient. */
void moe_note_returned(const struct layer_context *context, const int64_t *counts);
/* Numbers of them, [count]. */
void moe_note_row_weights(const struct layer_context *context, struct tensor weights);
void moe_note_row_gates(const struct layer_context *context, struct tensor gates);
/* The gradient of the weights [T, top_k], as it is due and as the router is given it. */
void moe_note_gate(const struct layer_context *context, struct tensor d_weight, bool due);
/* Rows behind an expert's own. */
void moe_note_padding(const struct layer_context *context, struct tensor rows);

#endif
