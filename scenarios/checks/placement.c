/* placement: what each tensor-parallel rank holds a part of a sum of is summed, once, before anyone reads it; what is whole
 * on all of them is the same on all.
 *
 *   calls    at every site of tensor and sequence parallelism, for each step, micro-batch and layer: as many as the model's
 *            matrices need, each over tp with the operation, the elements and the format that are due; and at the end of a
 *            step one sum of the gradients of what saw slices (sp.grad_reduce), where a rank owns any
 *   choices  a row-parallel matrix' bias is added behind the sum; a rank's part of the vocabulary begins with its first row;
 *            what is whole is known to be; keys' and values' matrices are cut within each; slices reach the sequence's end;
 *            the backwards are those of the forward; what saw slices is summed, and not divided
 *   sums     where they are watched, what each rank gets is what all gave, within 64 roundings of the norms, and
 *            as often the smallest number of the narrowest format an element
 *   copies   activations and their gradients at the boundaries of units: equal to the bit over tp; found is the first that
 *            is not, in the order in which a rank computes (not where these are slices: parallel.sequence_parallel)
 * Limit: exact, but for the sums. Counts follow from the model alone: a row-parallel matrix a block (attention, feed-forward, the shared
 * expert) sums its outputs; what stands before column-parallel ones has its gradient summed (both latents of
 * mla_attention, the head's input). Cost: none. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/precision.h"
#include "scenarios/call_due.h"
#include "scenarios/check.h"
#include "scenarios/facts.h"
#include "scenarios/sequence_sums.h"
#include "sim/arena.h"

static const struct site *const sites[] = {&site_tp_embedding_reduce, &site_tp_row_reduce, &site_tp_loss_max, &site_tp_loss_reduce,
                                           &site_tp_input_grad_reduce, &site_sp_gather, &site_sp_gather_again, &site_sp_output_grad_gather};
enum { SITES = sizeof sites / sizeof sites[0] };

static bool has_shared(const struct model_config *model, int layer)
{
    return !model_layer_has_experts(model, layer) || model->moe.shared_ffn > 0;
}

static bool is_split(const struct run_config *config, enum tensor_part part)
{
    return !(config->layout.tensor_whole & part);
}

/* Sums of a layer: of so many from attention, and one of its feed-forward network or shared expert. */
static int sums_of_layer(const struct run_config *config, int layer, int of_attention)
{
    return (is_split(config, TENSOR_ATTENTION) ? of_attention : 0) + (is_split(config, TENSOR_FEED_FORWARD) && has_shared(&config->model, layer));
}

/* Gathers along the sequence: of a block's input, or of both latents, before its column-parallel matrices; of a row-parallel one's
 * output gradient, and the embedding's. */
static int gathers_due(const struct run_config *config, const struct site *site, int unit, int forwards)
{
    const struct model_config *model = &config->model;
    bool is_layer = unit >= 1 && unit <= model->layers, latent = model->attention == ATTENTION_MLA;
    if (!layout_slices_sequences(&config->layout)) return 0;
    if (site == &site_sp_output_grad_gather) return unit == 0 ? 1 : is_layer ? 1 + has_shared(model, unit - 1) : 0;
    if (!is_layer) return unit == model->layers + 1;
    int once = (latent ? 2 : 1) + has_shared(model, unit - 1);
    if (site == &site_sp_gather_again) return once;
    unsigned part = model_layer_has_experts(model, unit - 1) ? RECOMPUTE_MOE_MLA_QKV : RECOMPUTE_DENSE_MLA_QKV;
    bool projects_again = latent && recompute_within(&config->layout.recompute) & part;
    return forwards * once + (projects_again ? 2 : 0);
}

/* Calls of a micro-batch at a site within one unit. */
static int calls_due(const struct run_config *config, const struct site *site, int unit)
{
    const struct model_config *model = &config->model;
    int forwards = config->layout.recompute.mode == RECOMPUTE_FULL ? 2 : 1; /* a layer's forward is run again, its sums with it */
    bool is_layer = unit >= 1 && unit <= model->layers, head = unit == model->layers + 1;
    if (site == &site_sp_gather || site == &site_sp_gather_again || site == &site_sp_output_grad_gather) return gathers_due(config, site, unit, forwards);
    if (!is_layer && !is_split(config, TENSOR_VOCABULARY)) return 0;
    if (site == &site_tp_embedding_reduce) return unit == 0;
    if (site == &site_tp_loss_max || site == &site_tp_loss_reduce) return head;
    if (site == &site_tp_row_reduce) return is_layer ? forwards * sums_of_layer(config, unit - 1, 1) : 0;
    if (head) return 1;
    return is_layer ? sums_of_layer(config, unit - 1, model->attention == ATTENTION_MLA ? 2 : 1) : 0;
}

static enum format format_due(const struct run_config *config, const struct site *site)
{
    if (site == &site_tp_loss_max || site == &site_tp_loss_reduce) return run_storage(config);
    return site == &site_tp_embedding_reduce || site == &site_sp_output_grad_gather ? config->precision.residual : precision_activation(&config->precision);
}

/* Is this how many elements a call there moves? */
static bool count_is_due(const struct run_config *config, const struct rank_record *rank, const struct site *site, uint64_t count)
{
    const struct model_config *model = &config->model;
    uint64_t rows = (uint64_t)layout_sequences_per_microbatch(config) * (uint64_t)facts_rows_due(config, rank->cp);
    if (site == &site_tp_loss_max) return count == rows;
    if (site == &site_tp_loss_reduce) return count == 2 * rows;
    if (count == rows * (uint64_t)model->dim) return true;
    bool latent = model->attention == ATTENTION_MLA && (site == &site_tp_input_grad_reduce || site == &site_sp_gather || site == &site_sp_gather_again);
    return latent && (count == rows * (uint64_t)model->mla.q_lora_rank || count == rows * (uint64_t)model->mla.kv_lora_rank);
}

static const char *wrong_about(const struct run_config *config, const struct rank_record *rank, const struct site *site, const struct call_record *call)
{
    struct call_due due;
    if (!call_due(config, site, &due)) return NULL;
    if (strcmp(call->op, due.op) != 0) return "calls-differ";
    if (strcmp(call->group, due.group) != 0) return "wrong-group";
    if (!call_is_due(call, &due)) return "wrong-op";
    if (call->format != format_due(config, site)) return "wrong-format";
    return count_is_due(config, rank, site, call->count) ? NULL : "calls-differ";
}

static void find_call(const struct evidence *e, struct check_output *output, const struct site *site, int rank, int step, int microbatch,
                      int unit, const char *pattern, int due, int got)
{
    char name[32];
    unit_name(&e->config->model, unit, name);
    struct finding finding = finding_new(site, place_at_unit(e->config, rank, step, microbatch, unit));
    finding.expected = due;
    finding.got = got;
    finding_pattern(&finding, pattern);
    if (due != got) {
        finding_say(&finding, "rank %d calls %d times at %s in %s, step %d, micro-batch %d, where %d are due", rank, got, site->name, name, step, microbatch, due);
    } else {
        finding_say(&finding, "the call of rank %d at %s in %s, step %d, micro-batch %d, is not the one due (%s): all of it, over tp, in the declared format",
                    rank, site->name, name, step, microbatch, pattern);
    }
    check_value(output, 1, 0);
    check_find(output, &finding);
}

/* [steps][microbatches][units] at one site. Calls outside layers say which by the site: embedding or head. */
static int unit_of_call(const struct model_config *model, const struct site *site, const struct call_record *call)
{
    if (call->layer >= 0) return call->layer + 1;
    return site == &site_tp_embedding_reduce || site == &site_sp_output_grad_gather ? 0 : model->layers + 1;
}

static void check_site(const struct evidence *e, struct check_output *output, const struct rank_record *rank, const struct site *site)
{
    const struct run_config *config = &e->parallel->config;
    int units = unit_count(&config->model), M = config->layout.microbatches, steps = e->parallel->config.train.steps;
    int *made = memory_zalloc((size_t)(steps * M * units) * sizeof *made);
    for (int i = 0; rank->communicator && i < communicator_calls(rank->communicator); i++) {
        const struct call_record *call = communicator_call(rank->communicator, i);
        if (strcmp(call->purpose, site->name) != 0 || call->step < 0 || call->step >= steps || call->microbatch < 0 || call->microbatch >= M) continue;
        int unit = unit_of_call(&config->model, site, call);
        const char *wrong = wrong_about(config, rank, site, call);
        int *here = &made[(call->step * M + call->microbatch) * units + unit];
        ++*here;
        if (wrong && *here == 1) find_call(e, output, site, rank->rank, call->step, call->microbatch, unit, wrong, 1, 1);
    }
    for (int cell = 0; cell < steps * M * units; cell++) {
        int unit = cell % units, own = unit >= rank->first_unit && unit < rank->first_unit + rank->units;
        int due = own ? calls_due(config, site, unit) : 0;
        bool split = site == &site_tp_input_grad_reduce && facts_was_chosen(rank, &site_sp_gather_backward, cell / units / M, unit); /* told by the choice */
        if (made[cell] != due && !split)
            find_call(e, output, site, rank->rank, cell / units / M, cell / units % M, unit, made[cell] < due ? "missing-sum" : "doubled-sum", due, made[cell]);
    }
    free(made);
}

/* ---- decisions ---- */

static const struct choice_words { const struct site *site; const char *pattern, *words; } choices[] = {
    {&site_tp_bias, "bias-on-every-rank", "adds the bias to its part of the sum, so that the sum has it as often as there are ranks"},
    {&site_tp_vocab_range, "range-differs", "takes its part of the vocabulary to begin one row late"},
    {&site_tp_cut_order, "cut-differs", "has a matrix of keys and values that was cut across the two: it takes values for keys, or keys for values"},
    {&site_tp_tag, "tag-lost", "takes a parameter that every tp rank has whole for a part of one"},
    {&site_tp_adapter_placement, "tag-lost", "places an adapter, which every tp rank has whole, as one rank's part"},
    {&site_moe_router_grad, "router-not-summed", "leaves the router's gradient, which is of its slice alone, out of the sum over tp"},
    {&site_tp_head_norm_grad, "head-norm-not-summed", "leaves the gradient of the norms of queries and keys, which is of its own heads alone, out of the sum over tp"},
    {&site_tp_loss_gradient, "no-backward", "has no gradient through the sum over tp within the loss"},
    {&site_tp_bias_gradient, "bias-over-tp", "takes the bias' gradient for that of the part which each rank adds"},
    {&site_sp_slice_end, "slice-short", "has slices that leave out the last position of each sequence"},
    {&site_sp_gather_backward, "split-for-sum", "splits the gradient of what was gathered where it is a part of a sum over tp"},
};

static const char *when_of(char *text, size_t size, int step, int microbatch)
{
    if (step < 0) snprintf(text, size, "at the beginning");
    else if (microbatch < 0) snprintf(text, size, "at the end of step %d", step);
    else snprintf(text, size, "in step %d, micro-batch %d,", step, microbatch);
    return text;
}

static const struct choice_words *words_of(const struct site *site)
{
    for (size_t i = 0; i < sizeof choices / sizeof choices[0]; i++) {
        if (choices[i].site == site) return &choices[i];
    }
    return NULL;
}

static void check_choices(const struct evidence *e, struct check_output *output, const struct rank_record *rank)
{
    for (int i = 0; i < rank->choices.count; i++) {
        const struct choice_fact *fact = &rank->choices.items[i];
        const struct choice_words *words = words_of(fact->site);
        if (!words || fact->count == fact->whole) continue;
        char name[32], when[64];
        unit_name(&e->config->model, fact->unit, name);
        int step = fact->step < 0 ? 0 : fact->step; /* what is settled before the first step acts from it on */
        struct finding finding = finding_new(fact->site, place_at_unit(e->config, rank->rank, step, fact->microbatch, fact->unit));
        finding_pattern(&finding, words->pattern);
        finding_say(&finding, "%s rank %d, %s, %s", when_of(when, sizeof when, fact->step, fact->microbatch), rank->rank, name, words->words);
        check_value(output, 1, 0);
        check_find(output, &finding);
    }
}

/* ---- sums ---- */

static void check_sums(const struct evidence *e, struct check_output *output, const struct rank_record *rank)
{
    for (int i = 0; i < rank->sums.count; i++) {
        const struct sum_fact *fact = &rank->sums.items[i];
        if (!tensor_sum_is_wrong(e->parallel, rank, i)) continue;
        char name[32], when[64];
        unit_name(&e->config->model, fact->unit, name);
        struct finding finding = finding_new(fact->site, place_at_unit(e->config, rank->rank, fact->step, fact->microbatch, fact->unit));
        finding_pattern(&finding, "other-sum");
        finding_say(&finding, "%s what rank %d gets from %s in %s is not the sum of what the tp ranks gave", when_of(when, sizeof when, fact->step, fact->microbatch),
                    rank->rank, fact->site->name, name);
        check_value(output, 1, 0);
        check_find(output, &finding);
        return; /* what follows may be its consequence */
    }
}

/* ---- gradients of what saw slices ---- */

/* The call of its layer behind `before` others. */
static const struct call_record *slice_call(const struct model_config *model, const struct rank_record *rank, int step, int unit, int before, int *ret_count)
{
    const struct call_record *found = NULL;
    *ret_count = 0;
    for (int i = 0; rank->communicator && i < communicator_calls(rank->communicator); i++) {
        const struct call_record *call = communicator_call(rank->communicator, i);
        if (call->step != step || strcmp(call->purpose, site_sp_grad_reduce.name) != 0) continue;
        if ((call->layer >= 0 ? call->layer + 1 : model->layers + 1) != unit_boundary(model, unit)) continue;
        if (*ret_count == before) found = call;
        ++*ret_count;
    }
    return found;
}

static void check_slice_gradient(const struct evidence *e, struct check_output *output, const struct rank_record *rank, int step, int unit)
{
    const struct run_config *config = &e->parallel->config;
    int64_t elements = sequence_sums_elements(e->parallel, rank, step, unit);
    int made, due = elements > 0, before = 0, behind = 0;
    bool is_layer = unit >= 1 && unit <= config->model.layers, experts = unit_is_experts(&config->model, unit);
    if (experts) before = sequence_sums_elements(e->parallel, rank, step, unit_boundary(&config->model, unit)) > 0; /* the layer's own comes first */
    if (is_layer) behind = sequence_sums_elements(e->parallel, rank, step, config->model.layers + 1 + unit) > 0;
    const struct call_record *call = slice_call(&config->model, rank, step, unit, before, &made);
    made = made <= before ? 0 : made - before > due + behind ? made - before - behind : made - before < due ? made - before : due;
    double divisor = sequence_sums_divisor(rank, step, unit);
    char name[32];
    unit_name(&config->model, unit, name);
    if (facts_was_chosen(rank, &site_tp_tag, -1, unit) || facts_was_chosen(rank, &site_tp_adapter_placement, -1, unit) ||
        facts_was_chosen(rank, &site_moe_router_grad, step, unit) || facts_was_chosen(rank, &site_tp_head_norm_grad, step, unit)) return; /* told by the choice */
    bool left = facts_was_chosen(rank, &site_sp_grad, step, unit);
    struct call_due other;
    call_due(config, &site_sp_grad_reduce, &other);
    bool good = call && call_is_due(call, &other) && call->format == config->precision.reduce && call->count == (uint64_t)elements;
    if (made == due && (!due || good) && divisor == 1) return;
    const struct site *site = left ? &site_sp_grad : made != due || !good ? &site_sp_grad_reduce : &site_sp_grad_divisor;
    struct finding finding = finding_new(site, place_at_unit(config, rank->rank, step, -1, unit));
    finding.expected = site == &site_sp_grad_divisor ? 1 : due;
    finding.got = site == &site_sp_grad_divisor ? divisor : made;
    bool other_format = call && call->format != config->precision.reduce;
    finding_pattern(&finding, made < due ? "missing-sum" : made > due ? "doubled-sum" : !good ? (other_format ? "wrong-format" : "calls-differ") : "divided");
    if (divisor != 1) {
        finding_say(&finding, "in step %d rank %d divides the sum over tp of gradients of slices by %.6g in %s; due is the sum", step, rank->rank, divisor, name);
    } else {
        finding_say(&finding, "in step %d rank %d does not sum over tp all %lld elements of gradients in %s that each tp rank has of its slice alone", step, rank->rank,
                    (long long)elements, name);
    }
    check_value(output, 1, 0);
    check_find(output, &finding);
}

static void check_slice_gradients(const struct evidence *e, struct check_output *output, const struct rank_record *rank, int step)
{
    const struct run_config *config = &e->parallel->config;
    for (int unit = rank->first_unit; unit < rank->first_unit + rank->units; unit++) {
        check_slice_gradient(e, output, rank, step, unit);
        if (unit >= 1 && unit <= config->model.layers && layout_ep(&config->layout) > 1) check_slice_gradient(e, output, rank, step, config->model.layers + 1 + unit);
    }
}

/* ---- copies ---- */

static const struct site *site_before(const struct run_config *config, const struct sketch_fact *fact)
{
    if (fact->kind == SKETCH_BACKWARD_OUT) return &site_tp_input_grad_reduce;
    if (fact->kind != SKETCH_FORWARD_OUT) return NULL; /* it came from another stage */
    return fact->unit == 0 ? &site_tp_embedding_reduce : fact->unit == config->model.layers + 1 ? &site_tp_loss_reduce : &site_tp_row_reduce;
}

/* Did two ranks drop other elements of the same layer? The check of draws says whose mask is wrong. */
static bool masks_differ(const struct rank_record *a, const struct rank_record *b, const struct sketch_fact *where)
{
    for (int i = 0; i < a->draws.count && i < b->draws.count; i++) {
        const struct draw_fact *one = &a->draws.items[i], *other = &b->draws.items[i];
        if (one->again || one->step != where->step || one->microbatch != where->microbatch || one->unit != where->unit) continue;
        if (other->unit == one->unit && other->sequence == one->sequence && (one->stream != other->stream || one->kept != other->kept)) return true;
    }
    return false;
}

static void check_copies(const struct evidence *e, struct check_output *output, const struct rank_record *rank)
{
    const struct rank_record *first = facts_rank(e->parallel, rank->stage, rank->data_rank);
    int count = first->sketches.count < rank->sketches.count ? first->sketches.count : rank->sketches.count;
    for (int i = 0; i < count; i++) {
        const struct sketch_fact *a = &first->sketches.items[i], *b = &rank->sketches.items[i];
        if (memcmp(a->value, b->value, sizeof a->value) == 0) continue;
        const struct site *site = site_before(e->config, a);
        if (!site || masks_differ(first, rank, a)) return;
        char name[32];
        unit_name(&e->config->model, a->unit, name);
        struct finding finding = finding_new(site, place_at_unit(e->config, rank->rank, a->step, a->microbatch, a->unit));
        finding_pattern(&finding, "copies-differ");
        finding_say(&finding, "in step %d, micro-batch %d, the %s of %s is not the same on rank %d as on rank %d, which share its matrices",
                    a->step, a->microbatch, a->kind == SKETCH_FORWARD_OUT ? "output" : "input's gradient", name, rank->rank, first->rank);
        check_value(output, 1, 0);
        check_find(output, &finding);
        return;
    }
}

static void run(const struct evidence *e, struct check_output *output)
{
    const struct record *record = e->parallel;
    if (record->config.layout.tp == 1) {
        check_skip(output, "no matrix is split: tp is 1");
        return;
    }
    check_value(output, 0, 0);
    for (int r = 0; r < record->ranks; r++) {
        check_choices(e, output, &record->rank[r]);
        check_sums(e, output, &record->rank[r]);
        for (int step = 0; facts_finished(record) && step < record->config.train.steps; step++) check_slice_gradients(e, output, &record->rank[r], step);
        if (record->rank[r].tp > 0 && !layout_slices_sequences(&record->config.layout)) check_copies(e, output, &record->rank[r]);
        for (int s = 0; facts_finished(record) && s < SITES; s++) check_site(e, output, &record->rank[r], sites[s]);
    }
}

const struct check check_placement = {
    .id = "placement",
    .proves = "each partial sum over tensor-parallel ranks is reduced exactly once before it is read, and what is whole on all of them is equal",
    .tier = "default",
    .measures = "sums, copies or choices that are not as due",
    .run = run,
};
