/* linear: y = x W^T + b. See linear.c. A bias without data is no bias. */
#ifndef MODEL_LAYERS_LINEAR_H
#define MODEL_LAYERS_LINEAR_H

#include "model/ops.h"

void linear_forward(const struct ops *ops, struct tensor y, struct tensor x, struct tensor weight, struct tensor bias);
/* dx = (accumulate ? dx : 0) + dy W */
void linear_backward_input(const struct ops *ops, struct tensor dx, struct tensor dy, struct tensor weight,
                           bool accumulate);
/* dW += dy^T x, db += column sums of dy */
void linear_backward_weight(const struct ops *ops, struct tensor dweight, struct tensor dbias, struct tensor dy,
                            struct tensor x);
double linear_forward_flops(int64_t rows, int64_t in, int64_t out);

#endif
