/* dispatch_shares: rows at experts whose matrices several ranks share (expert tensor parallelism: w1 and w3 by rows, w2 by columns).
 *
 *   same tokens     the members of a tensor group have the same tokens and so the same rows: each computes its part of the inner
 *                   width, the results are summed over the group (etp.row_reduce), and so is the gradient of the rows
 *                   (etp.input_grad_reduce)
 *   slices          each member has its own tokens (sequence parallelism), so a member's experts need the rows of all: counts
 *                   and rows are gathered over the group, unevenly (etp.counts, etp.gather), in the order of members, and
 *                   sorted by expert, then member; partial results go back by a reduce-scatter. Backward: the gradient of the
 *                   results is gathered (etp.output_grad_gather), that of the rows reduce-scattered
 * The bias b2 is added to the sum, once. Sums in the format of activations, in the order of the algorithm.
 * Source: Megatron-LM core/transformer/moe/token_dispatcher.py (tokens over expert-TP between the two all-to-alls). */
#include <string.h>

#include "model/layers/dispatch.h"
#include "model/layers/moe_network.h"
#include "model/precision.h"

struct shares {                         /* of slices */
    int64_t *arrived;                   /* [members * experts] */
    size_t *of_member;                  /* rows */
    int32_t *sorted, *restored;
};

static struct group *sharing(const struct layer_context *context)
{
    return context->ep && context->ep->tensor && context->ep->tensor->size > 1 ? context->ep->tensor : NULL;
}

bool dispatch_is_shared(const struct layer_context *context)
{
    return sharing(context) != NULL;
}

static void gather_counts(const struct layer_context *context, const struct dispatch *d, struct shares *shares)
{
    struct group *group = sharing(context);
    int experts = d->experts;
    double *own = arena_alloc(context->scratch, (size_t)experts * sizeof *own), *all = arena_alloc(context->scratch, (size_t)(group->size * experts) * sizeof *all);
    for (int e = 0; e < experts; e++) own[e] = (double)(d->bounds[e + 1] - d->bounds[e]);
    struct comm how = dispatch_comm(context, &site_etp_counts);
    all_gather(context->ep->communicator, group, &how, dispatch_buffer(tensor_2d(all, FORMAT_FP64, group->size, experts), FORMAT_FP64),
               dispatch_buffer(tensor_1d(own, FORMAT_FP64, experts), FORMAT_FP64), NULL);
    for (int i = 0; i < group->size * experts; i++) {
        bool here = i / experts == group->me;
        shares->arrived[i] = dispatch_count(here ? own[i % experts] : all[i], dispatch_most_rows(context));
        shares->of_member[i / experts] += (size_t)shares->arrived[i];
    }
}

/* Rows of all members in the order of members; kept in `arena`. */
static struct tensor gather_rows(const struct layer_context *context, const struct dispatch *d, const struct site *site, struct tensor own, struct arena *arena)
{
    const struct shares *shares = d->shares;
    struct group *group = sharing(context);
    enum format wire = precision_activation(context->precision);
    size_t *counts = arena_alloc(context->scratch, (size_t)group->size * sizeof *counts);
    struct tensor all = rows_alloc(context, d->work.rows, own.shape[1], arena);
    for (int i = 0; i < group->size; i++) counts[i] = shares->of_member[i] * (size_t)own.shape[1];
    struct comm how = dispatch_comm(context, site);
    all_gather(context->ep->communicator, group, &how, dispatch_buffer(all, wire), dispatch_buffer(own, wire), counts);
    return all;
}

static void plan(const struct layer_context *context, struct dispatch *d, struct arena *arena)
{
    int members = sharing(context)->size, experts = d->experts;
    struct shares *shares = d->shares = arena_zalloc(arena, sizeof *shares);
    struct dispatch_work *work = &d->work;
    shares->arrived = arena_zalloc(arena, (size_t)(members * experts) * sizeof *shares->arrived);
    shares->of_member = arena_zalloc(arena, (size_t)members * sizeof *shares->of_member);
    gather_counts(context, d, shares);
    work->bounds = arena_zalloc(arena, (size_t)(experts + 1) * sizeof *work->bounds);
    int64_t *by_expert = arena_alloc(context->scratch, (size_t)(members * experts) * sizeof *by_expert);
    for (int e = 0; e < experts; e++) {
        work->bounds[e + 1] = work->bounds[e];
        for (int m = 0; m < members; m++) work->bounds[e + 1] += by_expert[e * members + m] = shares->arrived[m * experts + e];
    }
    work->rows = work->bounds[experts];
    shares->sorted = arena_alloc(arena, (size_t)(work->rows + 1) * sizeof *shares->sorted);
    shares->restored = arena_alloc(arena, (size_t)(work->rows + 1) * sizeof *shares->restored);
    dispatch_transpose(shares->arrived, members, experts, shares->sorted);
    dispatch_transpose(by_expert, experts, members, shares->restored);
}

void dispatch_share(const struct layer_context *context, struct dispatch *d, struct arena *arena)
{
    struct dispatch_work *work = &d->work;
    *work = (struct dispatch_work){.rows = d->rows, .bounds = d->bounds, .in = d->in, .out = d->out};
    if (!sharing(context) || !dispatch_has_slices(context)) return;
    struct arena_mark mark = arena_mark(context->scratch);
    plan(context, d, arena);
    work->in = rows_alloc(context, work->rows, d->in.shape[1], arena);
    work->out = rows_alloc(context, work->rows, d->in.shape[1], arena);
    context->ops->gather_rows(work->in, gather_rows(context, d, &site_etp_gather, d->in, context->scratch), d->shares->sorted);
    arena_release(context->scratch, mark);
}

void dispatch_share_again(struct dispatch *d)
{
    if (!d->shares) d->work.in = d->in; /* else it is kept: to make it again would take a call */
}

/* own = the sum of what the members' parts of the inner width give. */
static void sum(const struct layer_context *context, const struct dispatch *d, const struct site *site, struct tensor own, struct tensor work)
{
    struct group *group = sharing(context);
    enum format wire = precision_activation(context->precision);
    struct comm how = dispatch_comm(context, site);
    struct arena_mark mark = arena_mark(context->scratch);
    if (d->shares) {
        size_t *counts = arena_alloc(context->scratch, (size_t)group->size * sizeof *counts);
        struct tensor restored = rows_alloc(context, d->work.rows, work.shape[1], context->scratch);
        for (int i = 0; i < group->size; i++) counts[i] = d->shares->of_member[i] * (size_t)work.shape[1];
        context->ops->gather_rows(restored, work, d->shares->restored);
        reduce_scatter(context->ep->communicator, group, &how, dispatch_buffer(own, wire), dispatch_buffer(restored, wire), counts, REDUCE_SUM);
    } else {
        all_reduce(context->ep->communicator, group, &how, dispatch_buffer(own, wire), REDUCE_SUM);
    }
    tensor_round(own, wire);
    arena_release(context->scratch, mark);
}

void dispatch_complete(const struct layer_context *context, struct dispatch *d, const struct tensor *const *biases)
{
    if (!sharing(context)) return;
    sum(context, d, &site_etp_row_reduce, d->out, d->work.out);
    for (int e = 0; e < d->experts && biases; e++) {
        struct tensor rows = tensor_rows(d->out, d->bounds[e], d->bounds[e + 1] - d->bounds[e]);
        if (rows.shape[0] > 0) context->ops->bias_forward(rows, *biases[e]);
        tensor_round(rows, precision_activation(context->precision));
    }
}

struct tensor dispatch_share_backward(const struct layer_context *context, struct dispatch *d, struct tensor d_out, struct arena *arena)
{
    if (!d->shares) return d_out;
    struct tensor wide = rows_alloc(context, d->work.rows, d_out.shape[1], arena);
    struct arena_mark mark = arena_mark(context->scratch);
    context->ops->gather_rows(wide, gather_rows(context, d, &site_etp_output_grad_gather, d_out, context->scratch), d->shares->sorted);
    arena_release(context->scratch, mark);
    return wide;
}

struct tensor dispatch_complete_backward(const struct layer_context *context, struct dispatch *d, struct tensor d_work)
{
    if (!sharing(context)) return d_work;
    struct tensor own = d->shares ? rows_alloc(context, d->rows, d_work.shape[1], context->scratch) : d_work;
    sum(context, d, &site_etp_input_grad_reduce, own, d_work);
    return own;
}
