/* ulysses: all positions of H / P heads on each member, by all-to-alls before and after (heads.c); in between attention of one
 * device, with the order of sums of one device: the same bits.
 *
 * Both H and the number of key/value heads must divide by P; nothing is replicated. Cost: 4 all-to-alls forward, 4 backward.
 * Source: Jacobs et al. 2023 (DeepSpeed-Ulysses). */
#include "model/context/job.h"

static void forward(struct context_call *call)
{
    context_heads_forward(call, call->cp->group, NULL);
}

static void backward(struct context_call *call)
{
    context_heads_backward(call, call->cp->group, NULL);
}

static bool allows(const struct context_shape *shape, char why[320])
{
    return context_heads_divide("ulysses", shape->size, shape, why);
}

const struct context_method context_method_ulysses = {"ulysses", allows, forward, backward};
