/* dispatch, all_to_all: rows go to the ranks of their experts and come back.
 *
 *   plan       each rank says how many rows it has for each expert: one all-to-all of counts, site ep.counts
 *   send       own rows, which lie in the order of experts and so of ranks: all-to-all with uneven parts, site ep.dispatch
 *   sort       what arrived is cut [rank, local expert]; the experts read it as [local expert, rank]
 *   combine    the inverse sort, all-to-all with the parts' sizes swapped (ep.combine); at home results times weights are added
 *              to their tokens in the order of experts, as one rank does: the same bits
 *   backward   the gradient of the results goes out as the rows did (ep.combine_grad), the rows' comes back as the results did
 *              (ep.dispatch_grad). Beside the first ride each sender's probes and ledger (struct expert_parallel)
 *
 * In two steps, member m = (o, i) of outer * inner ranks, m = o inner + i. Rows for (o, i) first go to member i of the own inner
 * group, sorted [i, o]; there they are sorted [o, source] and go to member o of the own outer group. What arrives is in the
 * order of the ranks it is from. Back: the same steps in the other order.
 *
 * Every row moves in the format of activations, which it is in already but for the gradients that come back. A rank without rows
 * takes part in every call.
 * Source: Megatron-LM core/transformer/moe/token_dispatcher.py (MoEAlltoAllTokenDispatcher). */
#include <string.h>

#include "model/deviations.h"
#include "model/layers/dispatch.h"
#include "model/layers/moe_network.h"
#include "model/layers/moe_note.h"
#include "model/precision.h"

/* How many rows (of whatever width) each part of an exchange has. */
struct parts {
    int64_t *send, *receive;        /* [ranks] */
    int64_t *middle;                /* two steps: [inner * outer], [i][o]: what inner member i has for this rank's place in node o */
};
struct exchange {
    struct parts parts;
    struct tensor received;         /* [rows, C], [rank, local expert] */
    int32_t *sorted, *restored;     /* [rows]: which of `received` is row i of `in`; which of `out` is row i of what goes back */
};

static int ranks_of(const struct layer_context *context)
{
    return context->ep->group->size;
}

static bool in_two_steps(const struct layer_context *context)
{
    return context->ep->inner && context->ep->outer;
}

/* ---- chunks ---- */

static void copy_rows(char *to, const char *from, size_t elements, size_t width)
{
    if (elements > 0) memcpy(to, from, elements * width);
}

static void keep(struct tensor to, struct tensor from)
{
    copy_rows(to.data, from.data, (size_t)tensor_count(to), format_storage_bytes(to.storage));
}

static int64_t total(const int64_t *counts, int count)
{
    int64_t sum = 0;
    for (int i = 0; i < count; i++) sum += counts[i];
    return sum;
}

/* Rows beyond the lengths (a mistaken rank's, which counts none for what it has) stay where they are. */
static struct tensor transposed(const struct layer_context *context, struct tensor t, const int64_t *lengths, int a_count, int b_count)
{
    size_t row_bytes = (size_t)t.shape[1] * format_storage_bytes(t.storage);
    int64_t rows = t.shape[0];
    int32_t *index = arena_alloc(context->scratch, (size_t)(rows + 1) * sizeof *index);
    char *to = arena_alloc(context->scratch, (size_t)rows * row_bytes + 1);
    dispatch_transpose(lengths, a_count, b_count, index);
    for (int64_t i = total(lengths, a_count * b_count); i < rows; i++) index[i] = (int32_t)i;
    for (int64_t i = 0; i < rows; i++) memcpy(to + (size_t)i * row_bytes, (const char *)t.data + (size_t)index[i] * row_bytes, row_bytes);
    return tensor_2d(to, t.storage, rows, t.shape[1]);
}

/* Lengths [a, b] as [b, a]. */
static int64_t *swapped(const struct layer_context *context, const int64_t *lengths, int a_count, int b_count)
{
    int64_t *ret = arena_alloc(context->scratch, (size_t)(a_count * b_count) * sizeof *ret);
    for (int a = 0; a < a_count; a++) {
        for (int b = 0; b < b_count; b++) ret[b * a_count + a] = lengths[a * b_count + b];
    }
    return ret;
}

/* Rows of each of `count` runs of `each` chunks. */
static int64_t *sums(const struct layer_context *context, const int64_t *lengths, int count, int each)
{
    int64_t *ret = arena_alloc(context->scratch, (size_t)count * sizeof *ret);
    for (int i = 0; i < count; i++) ret[i] = total(lengths + i * each, each);
    return ret;
}

/* ---- one exchange ---- */

/* What one all-to-all moves: rows, and behind each part as many elements more, in the sender from `riding`, summed here. */
struct step {
    struct group *group;
    enum format wire;
    bool even;                      /* all parts are equal */
    struct arena *kept;             /* where what arrives is put, since it may come late (asynchronous sites); NULL: in scratch */
    double stretch;                 /* offsets of parts in what is sent, over those that are due; 0: 1 */
    size_t probes;
    const void *riding;             /* the same for every member; NULL: none */
    struct ledger *ledger, *arrived;
};

/* Where the rows of a part of `count` begin, which is due at `offset`. */
static int64_t part_begins(const struct step *step, int64_t offset, int64_t count, int64_t rows)
{
    double at = step->stretch != 0 ? (double)offset * step->stretch : (double)offset;
    return !(at > 0) ? 0 : at > (double)(rows - count) ? rows - count : (int64_t)at;
}

/* Parts with what rides behind them. */
static char *pack(const struct layer_context *context, const struct step *step, struct tensor in, const int64_t *send, size_t all)
{
    size_t columns = (size_t)in.shape[1], width = format_storage_bytes(in.storage);
    char *packed = arena_alloc(context->scratch, all * width + 1), *to = packed;
    int64_t offset = 0;
    for (int i = 0; i < step->group->size; i++) {
        size_t elements = (size_t)send[i] * columns;
        copy_rows(to, (const char *)in.data + (size_t)part_begins(step, offset, send[i], in.shape[0]) * columns * width, elements, width);
        copy_rows(to + elements * width, step->riding, step->probes, width);
        to += (elements + step->probes) * width;
        offset += send[i];
    }
    return packed;
}

static void wait_for(const struct layer_context *context, const struct site *site, struct collective *collective, struct buffer arrives)
{
    collective_wait(context->ep->communicator, collective);
    communicator_reads(context->ep->communicator, arrives.data, arrives.count * format_storage_bytes(arrives.storage), site, context->where);
}

static struct tensor run_step(const struct layer_context *context, const struct site *site, const struct step *step, struct tensor in,
                              const int64_t *send, const int64_t *receive)
{
    struct arena *scratch = context->scratch;
    int size = step->group->size;
    size_t columns = (size_t)in.shape[1], width = format_storage_bytes(in.storage), *out_counts = arena_alloc(scratch, (size_t)size * sizeof(size_t));
    size_t *in_counts = arena_alloc(scratch, (size_t)size * sizeof *in_counts), in_all = 0, out_all = 0;
    for (int i = 0; i < size; i++) {
        in_all += in_counts[i] = (size_t)send[i] * columns + step->probes;
        out_all += out_counts[i] = (size_t)receive[i] * columns + step->probes;
    }
    char *out = arena_alloc(step->kept ? step->kept : scratch, out_all * width + 1), *packed = in.data;
    if (step->probes > 0 || step->stretch != 0) packed = pack(context, step, in, send, in_all);
    struct comm how = dispatch_comm(context, site);
    how.uncounted = step->probes;
    struct buffer from_here = {packed, in_all, in.storage, step->wire, step->ledger}, to_here = {out, out_all, in.storage, step->wire, step->arrived};
    if (step->kept) wait_for(context, site, all_to_all_start(context->ep->communicator, step->group, &how, to_here, from_here, in_counts, out_counts), to_here);
    else if (step->even) all_to_all(context->ep->communicator, step->group, &how, to_here, from_here);
    else all_to_all_uneven(context->ep->communicator, step->group, &how, to_here, from_here, in_counts, out_counts);
    if (step->probes > 0) {
        char *to = out, *from = out, *all = arena_alloc(scratch, (size_t)size * step->probes * width);
        for (int i = 0; i < size; i++) {
            size_t elements = (size_t)receive[i] * columns;
            if (to != from && elements > 0) memmove(to, from, elements * width);
            copy_rows(all + (size_t)i * step->probes * width, from + elements * width, step->probes, width);
            to += elements * width;
            from += out_counts[i] * width;
        }
        dispatch_take_probes(context, all, step->probes, size);
    }
    return tensor_2d(out, in.storage, total(receive, size), in.shape[1]);
}

/* Rows [all sent, width] as they arrive. ret_middle: what is here between the two steps, [i][o] (NULL: nobody asks). */
static struct tensor out_and_there(const struct layer_context *context, const struct parts *parts, const struct site *site, struct step step,
                                   struct tensor in, struct tensor *ret_middle)
{
    const struct expert_parallel *ep = context->ep;
    step.group = ep->group;
    if (!in_two_steps(context)) return run_step(context, site, &step, in, parts->send, parts->receive);
    int inner = ep->inner->size, outer = ep->outer->size;
    struct ledger *arrived = step.arrived;
    bool inner_first = site != &site_ep_dispatch || decision_site(context->plan, &site_ep_inner_order, context->where, true, true);
    struct tensor by_inner = inner_first ? transposed(context, in, parts->send, outer, inner) : in;
    step.group = ep->inner;
    step.arrived = arrived ? ep->middle_ledger : NULL;
    struct tensor middle = run_step(context, site, &step, by_inner, sums(context, swapped(context, parts->send, outer, inner), inner, outer),
                                    sums(context, parts->middle, inner, outer));
    if (ret_middle) *ret_middle = middle;
    struct tensor by_outer = transposed(context, middle, parts->middle, inner, outer);
    void *riding = arena_alloc(context->scratch, step.probes * format_storage_bytes(in.storage) + 1);
    copy_rows(riding, ep->arrived_probes, step.probes, format_storage_bytes(in.storage));
    step = (struct step){.group = ep->outer, .wire = step.wire, .even = step.even, .kept = step.kept, .probes = step.probes, .riding = riding, .ledger = step.arrived, .arrived = arrived};
    return run_step(context, site, &step, by_outer, sums(context, swapped(context, parts->middle, inner, outer), outer, inner),
                    sums(context, parts->receive, outer, inner));
}

/* The way back by the parts of the way there: as much as it brings, the rest is what memory held. */
static struct tensor back_unswapped(const struct layer_context *context, const struct parts *parts, const struct site *site, const struct step *step, struct tensor in)
{
    int64_t there = total(parts->receive, ranks_of(context)), here = total(parts->send, ranks_of(context)), most = there > here ? there : here;
    struct tensor rows = rows_alloc(context, most, in.shape[1], context->scratch);
    memory_poison(rows.data, (size_t)tensor_bytes(rows));
    keep(tensor_rows(rows, 0, there), in);
    struct tensor home = run_step(context, site, step, tensor_rows(rows, 0, here), parts->send, parts->receive);
    memory_poison(rows.data, (size_t)tensor_bytes(rows));
    keep(tensor_rows(rows, 0, there), home);
    return tensor_rows(rows, 0, here);
}

/* The way back: rows in the order of the ranks that they are for. */
static struct tensor and_back(const struct layer_context *context, const struct parts *parts, const struct site *site, struct tensor in, struct arena *kept)
{
    const struct expert_parallel *ep = context->ep;
    struct step step = {.group = ep->group, .wire = precision_activation(context->precision), .kept = kept};
    bool is_swapped = site != &site_ep_dispatch_grad || decision_site(context->plan, &site_ep_grad_splits, context->where, true, true);
    if (site == &site_ep_dispatch_grad) moe_note_returned(context, is_swapped ? parts->receive : parts->send);
    if (!is_swapped) return back_unswapped(context, parts, site, &step, in);
    if (!in_two_steps(context)) return run_step(context, site, &step, in, parts->receive, parts->send);
    int inner = ep->inner->size, outer = ep->outer->size;
    int64_t *by_outer = swapped(context, parts->middle, inner, outer), *by_inner = swapped(context, parts->send, outer, inner);
    step.group = ep->outer;
    struct tensor middle = run_step(context, site, &step, in, sums(context, parts->receive, outer, inner), sums(context, by_outer, outer, inner));
    middle = transposed(context, middle, by_outer, outer, inner);
    step.group = ep->inner;
    struct tensor home = run_step(context, site, &step, middle, sums(context, parts->middle, inner, outer), sums(context, by_inner, inner, outer));
    return transposed(context, home, by_inner, inner, outer);
}

/* ---- the dispatcher ---- */

static void alike(int64_t *counts, int count, int64_t value)
{
    for (int i = 0; i < count; i++) counts[i] = value;
}

static void exchange_counts(const struct layer_context *context, struct dispatch *d, struct exchange *x)
{
    int ranks = ranks_of(context), experts = d->experts, inner = in_two_steps(context) ? context->ep->inner->size : 1;
    int64_t *each = arena_alloc(context->scratch, (size_t)ranks * sizeof *each), most = dispatch_most_rows(context);
    double *counts = arena_alloc(context->scratch, (size_t)(ranks * experts) * sizeof *counts);
    alike(each, ranks, 1);
    for (int i = 0; i < ranks * experts; i++) counts[i] = (double)(d->own.bounds[i + 1] - d->own.bounds[i]);
    struct tensor middle = {.data = NULL};
    struct tensor arrived = out_and_there(context, &(struct parts){each, each, each}, &site_ep_counts, (struct step){.wire = FORMAT_FP64, .even = true},
                                          tensor_2d(counts, FORMAT_FP64, ranks, experts), &middle);
    for (int i = 0; i < ranks * experts; i++) d->arrived[i] = dispatch_count(((const double *)arrived.data)[i], most);
    for (int m = 0; m < ranks; m++) {
        x->parts.send[m] = d->own.bounds[(m + 1) * experts] - d->own.bounds[m * experts];
        x->parts.receive[m] = total(d->arrived + m * experts, experts);
        for (int e = 0; e < experts && inner > 1; e++)
            x->parts.middle[m] += dispatch_count(((const double *)middle.data)[m * experts + e], most);
    }
}

/* Rows of alignment behind an expert that has none, which only one side leaves room for: the experts after it begin late. */
static void reserve_slots(const struct layer_context *context, struct dispatch *d)
{
    int64_t unit = context->model->moe.row_alignment, late = 0, before = 0;
    if (unit <= 1 || decision_site(context->plan, &site_ep_empty_slots, context->where, true, true)) return;
    for (int e = 0; e < d->experts; e++) {
        bool empty = d->bounds[e + 1] == before;
        before = d->bounds[e + 1];
        if (empty) late += unit;
        if (e + 1 < d->experts) d->bounds[e + 1] = before + late < d->rows ? before + late : d->rows;
    }
}

/* Numbers of rows in as many bits as they have. */
static void narrow_index(const struct layer_context *context, const struct dispatch *d, int32_t *index)
{
    double bits = factor_site(context->plan, &site_ep_index_bits, context->where, 31, router_numbers(context));
    if (!(bits < 31)) return;
    int32_t last = (int32_t)((1u << (bits > 1 ? (int)bits : 1)) - 1);
    for (int64_t i = 0; i < d->rows; i++) index[i] &= last;
}

static void plan(const struct layer_context *context, struct dispatch *d, struct arena *arena)
{
    int ranks = ranks_of(context), experts = d->experts;
    struct exchange *x = d->state = arena_zalloc(arena, sizeof *x);
    x->parts.send = arena_zalloc(arena, (size_t)ranks * sizeof *x->parts.send);
    x->parts.receive = arena_zalloc(arena, (size_t)ranks * sizeof *x->parts.receive);
    x->parts.middle = arena_zalloc(arena, (size_t)ranks * sizeof *x->parts.middle);
    d->arrived = arena_zalloc(arena, (size_t)(ranks * experts) * sizeof *d->arrived);
    struct arena_mark mark = arena_mark(context->scratch);
    exchange_counts(context, d, x);
    d->bounds = arena_zalloc(arena, (size_t)(experts + 1) * sizeof *d->bounds);
    int64_t *by_expert = swapped(context, d->arrived, ranks, experts);
    for (int e = 0; e < experts; e++) d->bounds[e + 1] = d->bounds[e] + total(by_expert + e * ranks, ranks);
    d->rows = d->bounds[experts];
    reserve_slots(context, d);
    x->sorted = arena_alloc(arena, (size_t)(d->rows + 1) * sizeof *x->sorted);
    x->restored = arena_alloc(arena, (size_t)(d->rows + 1) * sizeof *x->restored);
    dispatch_transpose(d->arrived, ranks, experts, x->sorted);
    narrow_index(context, d, x->sorted);
    bool transposed_counts = decision_site(context->plan, &site_ep_restore_order, context->where, true, true);
    dispatch_transpose(transposed_counts ? by_expert : d->arrived, experts, ranks, x->restored);
    arena_release(context->scratch, mark);
}

static void send(const struct layer_context *context, struct dispatch *d, struct tensor normed, struct arena *arena)
{
    struct exchange *x = d->state;
    int64_t dim = context->model->dim;
    d->own_in = rows_alloc(context, d->own.rows, dim, context->scratch);
    context->ops->gather_rows(d->own_in, normed, d->own.from);
    tensor_site(context->plan, &site_moe_dispatch, context->where, d->own_in);
    moe_note_rows(context, DISPATCH_SENT, d->own_in);
    double bytes = format_traits[precision_activation(context->precision)].bytes;
    double stretch = factor_site(context->plan, &site_ep_element_bytes, context->where, bytes, router_numbers(context)) / bytes;
    struct step step = {.wire = precision_activation(context->precision), .kept = arena, .stretch = stretch != 1 ? stretch : 0};
    struct arena_mark mark = arena_mark(context->scratch);
    x->received = out_and_there(context, &x->parts, &site_ep_dispatch, step, d->own_in, NULL);
    moe_note_rows(context, DISPATCH_ARRIVED, x->received);
    arena_release(context->scratch, mark);
}

static void sort(const struct layer_context *context, struct dispatch *d, struct tensor normed, struct arena *arena)
{
    struct exchange *x = d->state;
    (void)normed;
    d->in = rows_alloc(context, d->rows, context->model->dim, arena);
    context->ops->gather_rows(d->in, x->received, x->sorted);
}

/* Rows of the experts home. */
static void bring_home(const struct layer_context *context, struct dispatch *d, const struct site *site, struct tensor home, struct tensor rows, struct arena *kept)
{
    struct exchange *x = d->state;
    struct arena_mark mark = arena_mark(context->scratch);
    struct tensor restored = rows_alloc(context, d->rows, context->model->dim, context->scratch);
    context->ops->gather_rows(restored, rows, x->restored);
    moe_note_rows(context, site == &site_ep_combine ? DISPATCH_LEAVES : DISPATCH_GRAD_LEAVES, restored);
    keep(home, and_back(context, &x->parts, site, restored, kept));
    arena_release(context->scratch, mark);
}

static void combine(const struct layer_context *context, struct dispatch *d, struct tensor routed, struct arena *arena)
{
    d->own_out = rows_alloc(context, d->own.rows, context->model->dim, arena);
    bring_home(context, d, &site_ep_combine, d->own_out, d->out, arena);
    moe_note_rows(context, DISPATCH_HOME, d->own_out);
    context->ops->scatter_add_rows(routed, d->own_out, d->own.back_token, d->own.weight);
}

static void combine_backward(const struct layer_context *context, struct dispatch *d, struct tensor d_out, struct tensor d_weight, struct tensor dy,
                             struct arena *arena)
{
    struct exchange *x = d->state;
    size_t probes = dispatch_probes(context);
    (void)arena;
    struct arena_mark mark = arena_mark(context->scratch);
    struct tensor own = rows_alloc(context, d->own.rows, context->model->dim, context->scratch);
    void *riding = arena_alloc(context->scratch, probes * format_storage_bytes(own.storage) + 1);
    dispatch_weigh_backward(context, &d->own, d->own_out, own, d_weight, dy);
    moe_note_rows(context, DISPATCH_GRAD_SENT, own);
    dispatch_put_probes(context, d, riding);
    struct step step = {.wire = precision_activation(context->precision), .probes = probes, .riding = riding,
                        .ledger = dispatch_ledger(context, d), .arrived = context->ep->arrived_ledger};
    struct tensor arrived = out_and_there(context, &x->parts, &site_ep_combine_grad, step, own, NULL);
    moe_note_rows(context, DISPATCH_GRAD_ARRIVED, arrived);
    context->ops->gather_rows(d_out, arrived, x->sorted);
    arena_release(context->scratch, mark);
}

static void backward(const struct layer_context *context, struct dispatch *d, struct tensor d_normed, struct tensor d_rows, struct arena *arena)
{
    (void)arena;
    struct arena_mark mark = arena_mark(context->scratch);
    struct tensor home = rows_alloc(context, d->own.rows, context->model->dim, context->scratch);
    bool takes_part = d->rows > 0 || decision_site(context->plan, &site_ep_empty_rank, context->where, true, true);
    if (takes_part) bring_home(context, d, &site_ep_dispatch_grad, home, d_rows, NULL);
    else memset(home.data, 0, (size_t)tensor_bytes(home));
    moe_note_rows(context, DISPATCH_GRAD_HOME, home);
    context->ops->scatter_add_rows(d_normed, home, d->own.from, (struct tensor){.data = NULL});
    arena_release(context->scratch, mark);
}

const struct dispatcher dispatcher_all_to_all = {
    .name = "all_to_all", .plan = plan, .send = send, .sort = sort, .combine = combine, .combine_backward = combine_backward, .backward = backward,
};
