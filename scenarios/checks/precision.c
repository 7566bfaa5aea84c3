/* precision: every store and every reduction happens in the format that the scenario declares.
 *
 *   on the wire   the format of each call, from the communicator's own counts: unshard in precision.param, gradients in
 *                 reduce, activations in residual, what is counted or reported in its storage
 *   in memory     reduced gradients, and parameters after an update, are held to the coarsest format that they
 *                 declare to go through: no value needs more significant bits (a store that was not rounded), and some value needs
 *                 nearly all of them (a store that was rounded to less; of 64 values the chance that all end in three
 *                 zero bits is 2^-192)
 *   in the logits  of the first 1024, 64 of which are not 0, some need nearly all the bits of precision.logits
 *   in the sum    a micro-batch's loss is the sum of its tokens' losses, in fp64
 *   in an average the printed loss' all-reduce: to the bit the contributions' sum in the order of its algorithm,
 *                 divided once by their number; not a sum of contributions that were divided before
 *   loss scale    one scale on all ranks; what is not finite anywhere is found everywhere, and its update left out
 *   a router      scores, unless model.moe.score_format narrows them, have nearly all bits of the storage, and so has what a
 *                 selection bias is moved to
 * Where an average is off by more than its roundings, logged-loss says so and this says nothing.
 * Limits: exact, but for the loss' sum (1e-12 relative to the sum of magnitudes). Sites: that of the call, of the reduction,
 * optimizer.update, loss.sum, amp.*, moe.scores, moe.bias. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/loss_convention.h"
#include "model/params.h"
#include "model/precision.h"
#include "model/sites.h"
#include "scenarios/check.h"
#include "scenarios/facts.h"
#include "scenarios/routing_due.h"
#include "scenarios/sequence_sums.h"

/* ---- on the wire ---- */

static bool declared_format(const struct run_config *config, const char *purpose, enum format *ret)
{
    const struct precision *p = &config->precision;
    enum format activation = precision_activation(p), storage = run_storage(config);
    const struct { const struct site *site; enum format format; } due[] = {
        {&site_fsdp_unshard, p->param},          {&site_pp_send_activation, p->residual},
        {&site_pp_send_grad, p->residual},       {&site_fsdp_reduce_grad, p->reduce},
        {&site_dp_all_reduce_grad, p->reduce},   {&site_ep_reduce_grad, p->reduce},
        {&site_hsdp_replicate_reduce, p->reduce},
        {&site_tied_grad_reduce, p->reduce},     {&site_loss_token_count_reduce, FORMAT_FP64},
        {&site_loss_report_reduce, FORMAT_FP64}, {&site_loss_report_broadcast, loss_convention_of(config)->logged_format},
        {&site_clip_norm_reduce, FORMAT_FP64},   {&site_amp_found_inf_reduce, FORMAT_FP64},
        {&site_ep_count_reduce, FORMAT_FP64},    {&site_sp_grad_reduce, p->reduce},
        {&site_ep_counts, FORMAT_FP64},          {&site_ep_map, FORMAT_FP64},
        {&site_etp_counts, FORMAT_FP64},         {&site_sp_aux_count_reduce, FORMAT_FP64},
        {&site_ep_dispatch, activation},         {&site_ep_combine, activation},
        {&site_ep_combine_grad, activation},     {&site_ep_dispatch_grad, activation},
        {&site_ep_token_gather, activation},     {&site_ep_token_grad_gather, activation},
        {&site_ep_gate_grad, storage},           {&site_ep_gate_grad_gather, storage},
        {&site_etp_gather, activation},          {&site_etp_row_reduce, activation},
        {&site_etp_input_grad_reduce, activation}, {&site_etp_output_grad_gather, activation},
        {&site_sp_gather, activation},           {&site_sp_gather_again, activation},
        {&site_sp_output_grad_gather, p->residual},
        {&site_cp_kv_hop, activation},           {&site_cp_dkv_hop, storage},
        {&site_cp_kv_gather, activation},        {&site_cp_kv_grad_scatter, storage},
    };
    for (size_t i = 0; i < sizeof due / sizeof due[0]; i++) {
        if (strcmp(due[i].site->name, purpose) != 0) continue;
        *ret = due[i].format;
        return true;
    }
    return false;
}

static void check_wire(const struct evidence *e, struct check_output *output, const struct rank_record *rank)
{
    for (int i = 0; rank->communicator && i < communicator_traffic_count(rank->communicator); i++) {
        const struct traffic *t = communicator_traffic(rank->communicator, i);
        enum format due;
        if (!declared_format(&e->parallel->config, t->purpose, &due) || t->format == due) continue;
        struct finding finding = finding_new(model_site_find(t->purpose), place_at(rank->rank, 0, -1));
        finding.expected = format_traits[due].significand_bits;
        finding.got = format_traits[t->format].significand_bits;
        finding_pattern(&finding, "wrong-format");
        finding_say(&finding, "rank %d moves %s in %s where %s is declared", rank->rank, t->purpose, format_traits[t->format].name,
                    format_traits[due].name);
        check_value(output, 1, 0);
        check_find(output, &finding);
    }
}

/* ---- in memory ---- */

/* fp16 has numbers of fewer bits near 0, where gradients lie: how many they have tells nothing then. */
static bool has_few_exponents(const struct precision *p)
{
    for (int i = 0; i < PRECISION_PARTS; i++) {
        if (format_traits[precision_part(p, i)].exponent_min > -126) return true;
    }
    return false;
}


struct bits { int64_t values; int most; };

static struct bits bits_in(const struct record *record, const struct tensor_fact *fact)
{
    struct bits bits;
    bits.most = vector_bits(fact->data, (size_t)fact->elements, run_storage(&record->config), &bits.values);
    return bits;
}

/* The last store of a gradient is in the accumulator's format, whatever it came through. */
static int bits_stored(const struct precision *p, enum tensor_kind kind)
{
    return format_traits[kind == TENSOR_PARAM ? p->master : p->accumulate].significand_bits;
}

static int bits_declared(const struct precision *p, enum tensor_kind kind)
{
    int a = format_traits[kind == TENSOR_PARAM ? p->master : p->reduce].significand_bits,
        b = format_traits[kind == TENSOR_PARAM ? p->master : p->accumulate].significand_bits;
    return a < b ? a : b;
}

/* Below this a healthy tensor of 64 values does not fall. Sums of few narrow numbers have few bits themselves: in a matrix'
 * gradient products of two are added, in an embedding's, a norm's or a bias' gradient the numbers as they are. */
static int bits_least(const struct record *record, const struct tensor_fact *fact)
{
    const struct precision *p = &record->config.precision;
    const struct param *param = &record->params.params[fact->param];
    int compute = format_traits[p->compute].significand_bits, residual = format_traits[p->residual].significand_bits;
    int declared = bits_declared(p, fact->kind), narrow = compute < residual ? compute : residual;
    int terms = param->info.dims == 2 && param->unit > 0 ? 2 * narrow : narrow;
    return (fact->kind == TENSOR_GRADIENT && terms < declared ? terms : declared) - 3;
}

/* Whose rounding it is: that of the last of the unit's second reductions, where it gave no more bits; else the first one's. */
static const struct site *rounded_at(const struct record *record, const struct rank_record *rank, const struct tensor_fact *fact, int most)
{
    int unit = record->params.params[fact->param].unit;
    const struct site *first = facts_reduction_site(&record->config, unit), *site = first;
    bool sliced = param_sees_part(&record->config.layout, &record->params.params[fact->param].info);
    if (sliced && sequence_sums_other(record, rank, fact->step, unit) == &site_sp_grad_reduce) return &site_sp_grad_reduce;
    for (int i = 0; i < rank->reductions.count; i++) {
        const struct reduction_fact *reduction = &rank->reductions.items[i];
        if (reduction->site == first || reduction->step != fact->step || reduction->bucket != unit || reduction->values == 0) continue;
        if (reduction->bits <= most) site = reduction->site;
    }
    return site;
}

static void find_store(const struct evidence *e, struct check_output *output, int rank, const struct tensor_fact *fact, int most)
{
    const struct run_config *config = &e->parallel->config;
    bool gradient = fact->kind == TENSOR_GRADIENT;
    int declared = bits_declared(&config->precision, fact->kind);
    struct finding finding = finding_new(gradient ? rounded_at(e->parallel, &e->parallel->rank[rank], fact, most) : &site_optimizer_update,
                                         place_at_unit(config, rank, fact->step, -1, fact->unit));
    finding.place.param = e->parallel->params.params[fact->param].info.name;
    finding.expected = declared;
    finding.got = most;
    finding_pattern(&finding, most > declared ? "not-rounded" : "rounded");
    finding_say(&finding, "in step %d the %s of %s on rank %d has at most %d significant bits where %d are declared", fact->step,
                gradient ? "gradient" : "value", finding.place.param, rank, most, declared);
    check_value(output, 1, 0);
    check_find(output, &finding);
}

/* Values that were narrow before stay so where nothing is added to them. */
static bool was_narrow(const struct record *record, const struct rank_record *rank, const struct tensor_fact *like)
{
    for (int i = 0; i < rank->tensors.count; i++) {
        const struct tensor_fact *fact = &rank->tensors.items[i];
        if (fact->kind != TENSOR_PARAM || fact->step != like->step - 1 || fact->param != like->param ||
            fact->unit != like->unit || fact->first != like->first) continue;
        return bits_in(record, fact).most < bits_least(record, fact);
    }
    return true;
}

/* A gradient that is zero in exact arithmetic is what rounding left of its terms: multiples of their last bits, few bits
 * themselves (a key bias without RoPE; the keys' half of kv_lora_up's bias). */
static bool is_left_over(const struct record *record, const struct tensor_fact *fact)
{
    double squares = 0, roundoff = precision_roundoff(&record->config.precision);
    for (int64_t i = 0; i < fact->elements; i++) {
        double x = format_get(fact->data, (size_t)i, run_storage(&record->config));
        squares += x * x;
    }
    return fact->kind == TENSOR_GRADIENT && sqrt(squares) <= 4096 * roundoff * fact->terms_norm;
}

static void check_stores(const struct evidence *e, struct check_output *output, const struct rank_record *rank)
{
    const struct record *record = e->parallel;
    const struct precision *p = &record->config.precision;
    for (int i = 0; i < rank->tensors.count; i++) {
        const struct tensor_fact *fact = &rank->tensors.items[i];
        if (fact->step < 0) continue;
        struct bits bits = bits_in(record, fact);
        bool above = bits.most > bits_stored(p, fact->kind);
        bool below = bits.values >= 64 && bits.most < bits_least(record, fact);
        /* Steps of one size swamp a parameter of few bits: nothing follows from how many it has. */
        bool tells = fact->kind == TENSOR_GRADIENT || format_traits[p->master].significand_bits >= 24;
        bool is_old = fact->kind == TENSOR_PARAM && was_narrow(record, rank, fact);
        if (below && (!tells || has_few_exponents(p) || is_old || is_left_over(record, fact))) below = false;
        if (above || below) find_store(e, output, rank->rank, fact, bits.most);
    }
}

/* What a reduction gave, as it came out of it. */
static void check_reductions(const struct evidence *e, struct check_output *output, const struct rank_record *rank)
{
    const struct run_config *config = &e->parallel->config;
    const struct precision *p = &config->precision;
    int declared = format_traits[p->reduce].significand_bits, compute = format_traits[p->compute].significand_bits,
        residual = format_traits[p->residual].significand_bits, narrow = compute < residual ? compute : residual;
    int least = (narrow < declared ? narrow : declared) - 3;
    for (int i = 0; i < rank->reductions.count; i++) {
        const struct reduction_fact *fact = &rank->reductions.items[i];
        bool above = fact->bits > declared && layout_data_ranks(&config->layout) > 1, below = !has_few_exponents(p) && fact->values >= 64 && fact->bits < least;
        check_value(output, above || below, 0);
        if (!above && !below) continue;
        struct finding finding = finding_new(fact->site, place_at(rank->rank, fact->step, fact->microbatch));
        finding.expected = declared;
        finding.got = fact->bits;
        finding_pattern(&finding, above ? "not-rounded" : "rounded");
        finding_say(&finding, "in step %d %s of %s %d gives rank %d numbers of at most %d significant bits where %d are declared",
                    fact->step, fact->site->name, fact->site != &site_hsdp_replicate_reduce && fact->site != &site_tied_grad_reduce ? "bucket" : "unit", fact->bucket, rank->rank,
                    fact->bits, declared);
        check_find(output, &finding);
    }
}

/* ---- in the sum ---- */

static void check_loss_sum(const struct evidence *e, struct check_output *output, const struct rank_record *rank,
                           const struct loss_fact *fact)
{
    double sum = 0, magnitudes = 0;
    for (int64_t t = 0; t < fact->token_count; t++) {
        sum += fact->token_loss[t];
        magnitudes += fabs(fact->token_loss[t]);
    }
    double error = sum == fact->loss_sum ? 0 : fabs(fact->loss_sum - sum) / fmax(magnitudes, 1e-300);
    if (!isfinite(magnitudes)) return;
    check_value(output, error, 1e-12);
    if (error <= 1e-12) return;
    struct finding finding = finding_new(&site_loss_sum, place_at(rank->rank, fact->step, fact->microbatch));
    finding.expected = sum;
    finding.got = fact->loss_sum;
    finding_pattern(&finding, "rounded");
    finding_say(&finding, "rank %d adds the %lld token losses of micro-batch %d in step %d up to %.9g; in fp64 they are %.9g",
                rank->rank, (long long)fact->valid, fact->microbatch, fact->step, fact->loss_sum, sum);
    (void)e;
    check_find(output, &finding);
}

/* ---- in the logits ---- */

static void check_logits(const struct evidence *e, struct check_output *output, const struct rank_record *rank, const struct loss_fact *fact)
{
    enum format format = e->parallel->config.precision.logits;
    int declared = format_traits[format].significand_bits, least = (declared < 16 ? declared : 16) - 3;
    bool below = fact->logit_values >= 64 && fact->logit_bits < least;
    check_value(output, below, 0);
    if (!below) return;
    struct finding finding = finding_new(&site_fsdp_output_cast, place_at(rank->rank, fact->step, fact->microbatch));
    finding.expected = declared;
    finding.got = fact->logit_bits;
    finding_pattern(&finding, "rounded");
    finding_say(&finding, "no logit of micro-batch %d in step %d on rank %d has more than %d significant bits, where %s is declared: the losses are "
                "made from narrower numbers", fact->microbatch, fact->step, rank->rank, fact->logit_bits, format_traits[format].name);
    check_find(output, &finding);
}

/* ---- in an average ---- */

static const char *algorithm_of(const struct rank_record *rank, int step)
{
    for (int i = 0; rank->communicator && i < communicator_calls(rank->communicator); i++) {
        const struct call_record *call = communicator_call(rank->communicator, i);
        if (call->step == step && !strcmp(call->purpose, site_loss_report_reduce.name)) return call->algorithm;
    }
    return NULL;
}

static void check_average(const struct evidence *e, struct check_output *output, const struct rank_record *rank,
                          const struct report_fact *fact)
{
    const struct record *record = e->parallel;
    int D = layout_data_ranks(&record->config.layout);
    const char *algorithm = algorithm_of(rank, fact->step);
    if (!algorithm) return;
    double *contributed = memory_alloc(2 * (size_t)D * sizeof *contributed), *sums = contributed + D, magnitudes = 0;
    int known = 0;
    for (int d = 0; d < D; d++) {
        const struct rank_record *member = facts_rank(record, rank->stage, d);
        const struct report_fact *part = member ? facts_report(member, fact->step) : NULL;
        if (!part) break;
        contributed[known++] = part->contributed;
        magnitudes += fabs(part->contributed);
    }
    int count = known == D ? all_reduce_sums(algorithm, contributed, D, sums) : 0;
    bool due = count == 0;
    for (int i = 0; i < count; i++) due = due || fact->averaged == sums[i] / D;
    double first = count ? sums[0] / D : 0;
    free(contributed);
    bool rounding = fabs(fact->averaged - first) <= 4 * D * ldexp(1, -53) * magnitudes;
    if (due || !rounding) return;
    struct finding finding = finding_new(&site_loss_report_reduce, place_at(rank->rank, fact->step, -1));
    finding.expected = first;
    finding.got = fact->averaged;
    finding_pattern(&finding, "rounded");
    finding_say(&finding, "rank %d gets %.17g as the average of the %d losses of step %d; their sum over their number is %.17g", rank->rank,
                fact->averaged, D, fact->step, first);
    check_value(output, 1, 0);
    check_find(output, &finding);
}

/* ---- loss scale ---- */

static bool found_anywhere(const struct record *record, int step)
{
    for (int r = 0; r < record->ranks; r++) {
        const struct scale_fact *fact = facts_scale(&record->rank[r], step);
        if (fact && fact->found_here) return true;
    }
    return false;
}

static void check_scale(const struct evidence *e, struct check_output *output, const struct rank_record *rank,
                        const struct scale_fact *fact)
{
    const struct record *record = e->parallel;
    const struct scale_fact *first = facts_scale(&record->rank[0], fact->step);
    bool due = found_anywhere(record, fact->step), dynamic = record->config.train.loss_scale.kind == LOSS_SCALING_DYNAMIC;
    const struct site *site = fact->found != due                ? &site_amp_found_inf_reduce
                              : dynamic && fact->skipped != due ? &site_amp_skip_step
                              : first && first->scale != fact->scale ? &site_amp_unscale
                                                                     : NULL;
    check_value(output, site != NULL, 0);
    if (!site) return;
    struct finding finding = finding_new(site, place_at(rank->rank, fact->step, -1));
    finding_pattern(&finding, site == &site_amp_unscale ? "copies-differ" : "not-agreed");
    finding_say(&finding, "rank %d %s in step %d, and a gradient that is not finite is %son some rank (scale %g)", rank->rank,
                fact->skipped ? "leaves its update out" : "updates", fact->step, due ? "" : "not ", fact->scale);
    check_find(output, &finding);
}

/* ---- a router's ---- */

static void check_scores(const struct evidence *e, struct check_output *output, const struct rank_record *rank, const struct routing_fact *fact,
                         const bool *padding)
{
    int64_t some, count = fact->tokens * fact->experts;
    int least = format_traits[run_storage(&e->parallel->config)].significand_bits - 3;
    (void)padding;
    if (!fact->whole || e->config->model.moe.scores_bf16 || count < 64) return;
    int most = vector_bits(fact->score, (size_t)count, FORMAT_FP64, &some);
    if (most >= least || some < 64) return;
    check_value(output, 1, 0);
    routing_find(e, output, &site_moe_scores, rank, fact, "rounded", least, most, "no score of the router has more than %d significant bits", most);
}

/* A bias that its own rounding to bf16 changed: what it must be has more bits. */
static void check_bias(const struct evidence *e, struct check_output *output, const struct rank_record *rank, const struct balance_fact *fact)
{
    enum format storage = run_storage(&e->parallel->config);
    bool all = true, any = false;
    double mean = 0;
    for (int i = 0; i < fact->experts; i++) mean += fact->summed[i] / fact->experts;
    for (int i = 0; i < fact->experts && fact->updates; i++) {
        double by = mean - fact->summed[i], sign = fabs(by) < 1e-9 * mean ? 0 : by > 0 ? 1 : -1;
        double due = format_round(storage, fact->before[i] + e->config->model.moe.bias_update_rate * sign), narrow = format_round(FORMAT_BF16, due);
        all = all && fact->after[i] == narrow;
        any = any || fabs(narrow - due) > 4 * format_traits[storage].unit_roundoff * fabs(due);
    }
    if (!all || !any) return;
    struct finding finding = finding_new(&site_moe_bias, place_at_unit(&e->parallel->config, rank->rank, fact->step, -1, fact->unit));
    finding_pattern(&finding, "rounded");
    finding_say(&finding, "rank %d keeps the selection bias of layer %d in bf16 after step %d", rank->rank, fact->unit - 1, fact->step);
    check_value(output, 1, 0);
    check_find(output, &finding);
}

static void run(const struct evidence *e, struct check_output *output)
{
    const struct record *record = e->parallel;
    check_value(output, 0, 0);
    for (int r = 0; r < record->ranks; r++) {
        const struct rank_record *rank = &record->rank[r];
        check_wire(e, output, rank);
        check_stores(e, output, rank);
        check_reductions(e, output, rank);
        for (int i = 0; i < rank->losses.count; i++) {
            check_logits(e, output, rank, &rank->losses.items[i]);
            check_loss_sum(e, output, rank, &rank->losses.items[i]);
        }
        for (int i = 0; i < rank->reports.count; i++) check_average(e, output, rank, &rank->reports.items[i]);
        for (int i = 0; i < rank->scales.count; i++) check_scale(e, output, rank, &rank->scales.items[i]);
        for (int i = 0; i < rank->balances.count; i++) check_bias(e, output, rank, &rank->balances.items[i]);
    }
    routing_each(e, output, check_scores);
}

const struct check check_precision = {
    .id = "precision",
    .proves = "every store and every reduction happens in the format that is declared, read off the calls and the numbers; "
              "a loss scale is one on all ranks, and all leave out the same updates",
    .tier = "default",
    .run = run,
};
