/* placement: what each tensor-parallel rank holds a part of a sum of is summed, once, before anyone reads it; what is whole
 * on all of them is the same on all.
 *
 *   calls    at every site of tensor parallelism, for each step, micro-batch and layer: as many as the model's matrices
 *            need, each an all-reduce over tp with the operation, the elements and the format that are due
 *   choices  a row-parallel matrix' bias is added behind the sum; a rank's part of the vocabulary begins with its first row
 *   sums     where they are watched, what each rank gets is what all gave, within 64 roundings of the norms, and
 *            as often the smallest number of the narrowest format an element
 *   copies   activations and their gradients at the boundaries of units: equal to the bit over tp; found is the first that
 *            is not, in the order in which a rank computes
 * Limit: exact, but for the sums. Counts follow from the model alone: a row-parallel matrix a block (attention, feed-forward, the shared
 * expert) sums its outputs; what stands before column-parallel ones has its gradient summed (both latents of
 * mla_attention, the head's input). Cost: none. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/precision.h"
#include "scenarios/call_due.h"
#include "scenarios/check.h"
#include "scenarios/facts.h"
#include "sim/arena.h"

static const struct site *const sites[] = {&site_tp_embedding_reduce, &site_tp_row_reduce, &site_tp_loss_max, &site_tp_loss_reduce,
                                           &site_tp_input_grad_reduce};
enum { SITES = sizeof sites / sizeof sites[0] };

static bool has_shared(const struct model_config *model, int layer)
{
    return !model_layer_has_experts(model, layer) || model->moe.shared_ffn > 0;
}

/* Calls of a micro-batch at a site within one unit. */
static int calls_due(const struct run_config *config, const struct site *site, int unit)
{
    const struct model_config *model = &config->model;
    int forwards = config->layout.recompute.mode == RECOMPUTE_FULL ? 2 : 1; /* a layer's forward is run again, its sums with it */
    bool is_layer = unit >= 1 && unit <= model->layers, head = unit == model->layers + 1;
    if (site == &site_tp_embedding_reduce) return unit == 0;
    if (site == &site_tp_loss_max || site == &site_tp_loss_reduce) return head;
    if (site == &site_tp_row_reduce) return is_layer ? forwards * (1 + has_shared(model, unit - 1)) : 0;
    if (head) return 1;
    return is_layer ? (model->attention == ATTENTION_MLA ? 2 : 1) + has_shared(model, unit - 1) : 0;
}

static enum format format_due(const struct run_config *config, const struct site *site)
{
    if (site == &site_tp_loss_max || site == &site_tp_loss_reduce) return run_storage(config);
    return site == &site_tp_embedding_reduce ? config->precision.residual : precision_activation(&config->precision);
}

/* Is this how many elements a call there moves? */
static bool count_is_due(const struct run_config *config, const struct site *site, uint64_t count)
{
    const struct model_config *model = &config->model;
    uint64_t rows = (uint64_t)layout_sequences_per_microbatch(config) * (uint64_t)model->seq;
    if (site == &site_tp_loss_max) return count == rows;
    if (site == &site_tp_loss_reduce) return count == 2 * rows;
    if (count == rows * (uint64_t)model->dim) return true;
    bool latent = model->attention == ATTENTION_MLA && site == &site_tp_input_grad_reduce;
    return latent && (count == rows * (uint64_t)model->mla.q_lora_rank || count == rows * (uint64_t)model->mla.kv_lora_rank);
}

static const char *wrong_about(const struct run_config *config, const struct site *site, const struct call_record *call)
{
    struct call_due due;
    if (!call_due(config, site, &due)) return NULL;
    if (strcmp(call->op, due.op) != 0) return "calls-differ";
    if (strcmp(call->group, due.group) != 0) return "wrong-group";
    if (call->reduce < 0 || strcmp(reduce_op_names[call->reduce], due.reduce) != 0) return "wrong-op";
    if (call->format != format_due(config, site)) return "wrong-format";
    return count_is_due(config, site, call->count) ? NULL : "calls-differ";
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
        finding_say(&finding, "rank %d sums %d times at %s in %s, step %d, micro-batch %d, where %d are due", rank, got, site->name, name, step, microbatch, due);
    } else {
        finding_say(&finding, "the sum of rank %d at %s in %s, step %d, micro-batch %d, is not the one due (%s): all of it, over tp, in the declared format",
                    rank, site->name, name, step, microbatch, pattern);
    }
    check_value(output, 1, 0);
    check_find(output, &finding);
}

/* [steps][microbatches][units] at one site. Calls outside layers say which by the site: embedding or head. */
static int unit_of_call(const struct model_config *model, const struct site *site, const struct call_record *call)
{
    if (call->layer >= 0) return call->layer + 1;
    return site == &site_tp_embedding_reduce ? 0 : model->layers + 1;
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
        const char *wrong = wrong_about(config, site, call);
        int *here = &made[(call->step * M + call->microbatch) * units + unit];
        ++*here;
        if (wrong && *here == 1) find_call(e, output, site, rank->rank, call->step, call->microbatch, unit, wrong, 1, 1);
    }
    for (int cell = 0; cell < steps * M * units; cell++) {
        int unit = cell % units, own = unit >= rank->first_unit && unit < rank->first_unit + rank->units;
        int due = own ? calls_due(config, site, unit) : 0;
        if (made[cell] != due)
            find_call(e, output, site, rank->rank, cell / units / M, cell / units % M, unit, made[cell] < due ? "missing-sum" : "doubled-sum", due, made[cell]);
    }
    free(made);
}

/* ---- decisions ---- */

static void check_choices(const struct evidence *e, struct check_output *output, const struct rank_record *rank)
{
    for (int i = 0; i < rank->choices.count; i++) {
        const struct choice_fact *fact = &rank->choices.items[i];
        bool bias = fact->site == &site_tp_bias;
        if ((!bias && fact->site != &site_tp_vocab_range) || fact->count == fact->whole) continue;
        char name[32];
        unit_name(&e->config->model, fact->unit, name);
        struct finding finding = finding_new(fact->site, place_at_unit(e->config, rank->rank, fact->step, fact->microbatch, fact->unit));
        finding_pattern(&finding, bias ? "bias-on-every-rank" : "range-differs");
        finding_say(&finding, bias ? "rank %d adds the bias to its part of the sum in %s, step %d, micro-batch %d, so that the sum has it as often as there are ranks"
                                   : "rank %d takes its part of the vocabulary to begin one row late in %s, step %d, micro-batch %d",
                    rank->rank, name, fact->step, fact->microbatch);
        check_value(output, 1, 0);
        check_find(output, &finding);
    }
}

/* ---- sums ---- */

/* What every rank got at its i-th sum against what all gave to theirs; sketches are linear. */
static bool sum_is_wrong(const struct record *record, const struct rank_record *rank, int i)
{
    const struct sum_fact *got = &rank->sums.items[i];
    double sum[4] = {0}, norms = 0;
    for (int r = 0; r < record->ranks; r++) {
        const struct rank_record *other = &record->rank[r];
        if (other->stage != rank->stage || other->data_rank != rank->data_rank) continue;
        const struct sum_fact *gave = i < other->sums.count ? &other->sums.items[i] : NULL;
        if (!gave || gave->site != got->site || gave->step != got->step || gave->microbatch != got->microbatch || gave->unit != got->unit) return false;
        for (int k = 0; k < 4; k++) sum[k] += gave->sent[k];
        norms += sqrt(gave->sent[4]);
    }
    if (!isfinite(norms)) return false; /* it went in like that */
    const struct model_config *model = &record->config.model;
    double columns = fmax(model->dim, fmax(model->mla.q_lora_rank, model->mla.kv_lora_rank));
    double elements = columns * layout_sequences_per_microbatch(&record->config) * model->seq;
    double underflow = precision_smallest(&record->config.precision) * sqrt(elements); /* the norm of what may become 0 */
    double limit = 64 * record->config.layout.tp * (precision_roundoff(&record->config.precision) * norms + underflow);
    bool overflows = norms >= format_traits[format_due(&record->config, got->site)].largest; /* then an element of the sum may */
    for (int k = 0; k < 4; k++) {
        if (overflows && !isfinite(got->received[k])) continue;
        if (!(fabs(got->received[k] - sum[k]) <= limit)) return true;
    }
    return false;
}

static void check_sums(const struct evidence *e, struct check_output *output, const struct rank_record *rank)
{
    for (int i = 0; i < rank->sums.count; i++) {
        const struct sum_fact *fact = &rank->sums.items[i];
        if (!sum_is_wrong(e->parallel, rank, i)) continue;
        char name[32];
        unit_name(&e->config->model, fact->unit, name);
        struct finding finding = finding_new(fact->site, place_at_unit(e->config, rank->rank, fact->step, fact->microbatch, fact->unit));
        finding_pattern(&finding, "other-sum");
        finding_say(&finding, "in step %d, micro-batch %d, what rank %d gets from %s in %s is not the sum of what the tp ranks gave",
                    fact->step, fact->microbatch, rank->rank, fact->site->name, name);
        check_value(output, 1, 0);
        check_find(output, &finding);
        return; /* what follows may be its consequence */
    }
}

/* ---- copies ---- */

static const struct site *site_before(const struct run_config *config, const struct sketch_fact *fact)
{
    if (fact->kind == SKETCH_BACKWARD_OUT) return &site_tp_input_grad_reduce;
    if (fact->kind != SKETCH_FORWARD_OUT) return NULL; /* it came from another stage */
    return fact->unit == 0 ? &site_tp_embedding_reduce : fact->unit == config->model.layers + 1 ? &site_tp_loss_reduce : &site_tp_row_reduce;
}

static void check_copies(const struct evidence *e, struct check_output *output, const struct rank_record *rank)
{
    const struct rank_record *first = facts_rank(e->parallel, rank->stage, rank->data_rank);
    int count = first->sketches.count < rank->sketches.count ? first->sketches.count : rank->sketches.count;
    for (int i = 0; i < count; i++) {
        const struct sketch_fact *a = &first->sketches.items[i], *b = &rank->sketches.items[i];
        if (memcmp(a->value, b->value, sizeof a->value) == 0) continue;
        const struct site *site = site_before(e->config, a);
        if (!site) return;
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
        if (record->rank[r].tp > 0) check_copies(e, output, &record->rank[r]);
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
