/* dropout: see dropout.c. */
#ifndef MODEL_LAYERS_DROPOUT_H
#define MODEL_LAYERS_DROPOUT_H

#include "model/layers/layers.h"
#include "sim/random.h"

/* advanced: see struct dropout_streams. */
struct random_stream dropout_stream(uint64_t seed, int step, int layer, enum dropout_place place, int64_t sequence, int advanced);

/* y = m y, rounded to activations. Returns which draw of its streams the mask is: what the backward needs of it. */
int dropout_forward(const struct layer_context *context, enum dropout_place place, struct tensor y);
/* m dy, rounded to the residual stream, from `arena`; dy itself where there is no dropout. */
struct tensor dropout_backward(const struct layer_context *context, enum dropout_place place, int drawn, struct tensor dy, struct arena *arena);

#endif
