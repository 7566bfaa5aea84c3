/* usp: ulysses over U consecutive members, and a ring over the P / U groups of them.
 *
 *   P = 4, U = 2       ulysses groups {0, 1}, {2, 3};  rings {0, 2} (first half of the heads), {1, 3}
 *
 * Every member has its positions by the layout over all P; after the all-to-all it has those of its ulysses group, put in
 * ascending order, and that is the block that goes round its ring. (yunchang cuts by ring rank after the all-to-all, so that a
 * zigzag is one over P / U; here the cut and the method do not depend on each other.)
 * Heads, and key/value heads, must divide by U. Cost: 4 all-to-alls over U and the ring's hops over P / U, forward and backward each.
 * Source: Fang & Zhao 2024 (USP, arXiv 2405.07719). */
#include "model/context/job.h"

#include <stdio.h>

static void forward(struct context_call *call)
{
    context_heads_forward(call, call->cp->ulysses, call->cp->ring);
}

static void backward(struct context_call *call)
{
    context_heads_backward(call, call->cp->ulysses, call->cp->ring);
}

static bool allows(const struct context_shape *shape, char why[320])
{
    if (shape->ulysses < 1 || shape->size % shape->ulysses != 0) {
        snprintf(why, 320, "usp cuts %d ranks into ulysses groups of %d, which does not divide them", shape->size, shape->ulysses);
        return false;
    }
    return context_heads_divide("usp", shape->ulysses, shape, why);
}

const struct context_method context_method_usp = {"usp", allows, forward, backward};
