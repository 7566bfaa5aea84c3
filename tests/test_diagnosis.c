/* Diagnosis: from real runs with one deviation each to the component, the site and the ranks; blind, since only the
 * records are looked at. And the order in which findings are believed. */
#include <math.h>
#include <stdio.h>

#include "scenarios/fault.h"
#include "tests/small_run.h"

enum { PLAIN = 0, DDP = 1, TIED = 2, EACH = 4, SUM = 8, HSDP = 16, BF16 = 32, SCALED = 64, PARTS = 128 /* zero 1 */, SPLIT = 256 /* zero 2 */ };

/* stage 0: ranks 0 to 2, stage 1: 3 to 5; HSDP: 0 to 5 and 6 to 11. ranks "" = any. */
struct case_of { const char *site, *deviation, *text; double value; int bits; int rank, step, microbatch, layer;
                 const char *component, *due_site /* NULL: the site itself */, *ranks, *ratio; };

static const struct case_of cases[] = {
    {"data.sample", "duplicate-rows", NULL, 0, PLAIN, SMALL_EVERYWHERE, "data.sample", NULL, "1 2 4 5", ""},
    {"data.sample", "shift", NULL, 0, PLAIN, 2, 1, 3, -1, "data.sample", NULL, "2", ""},
    {"fsdp.unshard", "stale", NULL, 0, PLAIN, -1, -1, -1, 1, "fsdp.params", NULL, "0 1 2", ""},
    {"fsdp.unshard", "scale", NULL, 1.5, PLAIN, 4, -1, -1, -1, "collectives", NULL, "4", ""},
    {"fsdp.unshard", "permute-chunks", NULL, 0, PLAIN, 4, -1, -1, -1, "collectives", NULL, "4", ""},
    {"fsdp.unshard", "corrupt", NULL, 0, PLAIN, 4, -1, -1, -1, "collectives", NULL, "4", ""},
    {"fsdp.unshard", "skip", NULL, 0, PLAIN, 1, -1, -1, -1, "fsdp.params", NULL, "1", ""},
    {"pp.send_activation", "skip", NULL, 0, PLAIN, 4, -1, 2, -1, "pp.send_activation", NULL, "4", ""},
    {"pp.send_activation", "scale", NULL, 1.01, PLAIN, 1, -1, -1, -1, "pp.send_activation", NULL, "4", ""},
    {"layer.forward", "perturb", NULL, 0.01, PLAIN, 4, 1, 3, 3, "hardware", NULL, "4", ""},
    {"layer.forward", "perturb", NULL, 0.01, PLAIN, 4, 0, 3, 3, "layer.forward", NULL, "4", ""}, /* nothing went before */
    {"layer.forward", "perturb", NULL, 0.01, PLAIN, 4, 1, -1, 3, "layer.forward", NULL, "4", ""}, /* again and again */
    {"layer.forward", "bit-flip", NULL, 0, PLAIN, 1, 1, 2, 1, "hardware", NULL, "1", ""},
    {"layer.backward", "bit-flip", NULL, 2, PLAIN, 4, 1, 0, 3, "hardware", NULL, "4", ""},
    {"layer.forward", "zero", NULL, 0, DDP, 1, -1, -1, 2, "layer.forward", NULL, "1", "0"},
    {"loss.token_count_reduce", "skip", NULL, 0, PLAIN, SMALL_EVERYWHERE, "loss.denominator", NULL, "3 4 5", ""},
    {"loss.denominator", "set", "N_all", 0, PLAIN, SMALL_EVERYWHERE, "loss.denominator", NULL, "3 4 5", "N/N_all"},
    {"loss.denominator", "times", "2", 0, SUM, 4, -1, -1, -1, "loss.denominator", NULL, "4", "1/P"},
    {"pp.loss.scale", "times", "1/M", 0, PLAIN, SMALL_EVERYWHERE, "pp.loss", NULL, "3 4 5", "1/M"},
    {"pp.loss.scale", "times", "N/(n*A)", 0, PLAIN, SMALL_EVERYWHERE, "pp.loss", NULL, "3 4 5", "M"},
    {"pp.loss.scale", "times", "N/(n*A)", 0, SUM, SMALL_EVERYWHERE, "pp.loss", NULL, "3 4 5", "M*D"},
    {"pp.loss.scale", "times", "N/(n*M*D)", 0, PLAIN, SMALL_EVERYWHERE, "pp.loss", NULL, "3 4 5", "N/(n*M*D)"},
    {"pp.loss.scale", "times", "N/(n_rank*D)", 0, DDP, SMALL_EVERYWHERE, "pp.loss", NULL, "3 4 5", "N/(n_rank*D)"},
    {"pp.loss.scale", "negate", NULL, 0, PLAIN, 5, -1, -1, -1, "pp.loss", NULL, "5", "-1"},
    {"pp.loss.scale", "set", "0", 0, PLAIN, 5, 1, 2, -1, "pp.loss", NULL, "5", "0"},
    {"loss.report_reduce", "wrong-group", "world", 0, PLAIN, SMALL_EVERYWHERE, "loss.report", NULL, "0 1 2 3 4 5",
     "1/P"},
    {"pp.send_grad", "stale", NULL, 0, PLAIN, SMALL_EVERYWHERE, "pp.send_grad", NULL, "0 1 2", ""},
    {"layer.backward", "perturb", NULL, 0.01, PLAIN, 2, -1, -1, 1, "layer.backward", NULL, "2", ""},
    {"layer.weight_gradient", "zero", NULL, 0, PLAIN, -1, -1, -1, 1, "layer.weight_gradient", NULL, "0 1 2", ""},
    {"pp.grad.clear", "always", NULL, 0, PLAIN, SMALL_EVERYWHERE, "pp.grad", NULL, "0 1 2 3 4 5", ""},
    {"pp.grad.clear", "never", NULL, 0, DDP, 4, -1, -1, -1, "pp.grad", NULL, "4", ""},
    {"pp.grad.flush", "never", NULL, 0, EACH, SMALL_EVERYWHERE, "pp.grad", NULL, "0 1 2 3 4 5", ""},
    {"pp.grad.flush", "never", NULL, 0, DDP, 4, -1, -1, -1, "pp.grad", NULL, "4", ""},
    {"fsdp.sync_now", "never", NULL, 0, DDP, SMALL_EVERYWHERE, "fsdp.sync_now", NULL, "0 1 2 3 4 5", ""},
    {"fsdp.sync_now", "off-by-one", NULL, 0, PLAIN, SMALL_EVERYWHERE, "fsdp.sync_now", NULL, "0 1 2 3 4 5", ""},
    {"fsdp.sync_now", "always", NULL, 0, PLAIN, 4, -1, -1, -1, "fsdp.sync_now", NULL, "4", ""},
    {"fsdp.reduce_grad", "skip", NULL, 0, PLAIN, SMALL_EVERYWHERE, "fsdp.reduce_grad", NULL, "0 1 2 3 4 5", ""},
    {"fsdp.reduce_grad", "skip", NULL, 0, PLAIN, 4, -1, -1, -1, "fsdp.reduce_grad", NULL, "4", ""},
    {"dp.all_reduce_grad", "drop", NULL, 0, DDP, SMALL_EVERYWHERE, "dp.all_reduce_grad", NULL, "", ""},
    {"fsdp.reduce_grad", "duplicate", NULL, 0, PLAIN, 1, -1, -1, -1, "collectives", NULL, "1", ""},
    {"fsdp.reduce_grad", "stale", NULL, 0, PLAIN, 1, -1, -1, -1, "fsdp.reduce_grad", NULL, "1", ""},
    {"fsdp.reduce_grad", "wrong-op", "avg", 0, PLAIN, SMALL_EVERYWHERE, "fsdp.reduce_grad", NULL, "0 1 2 3 4 5", "1/D"},
    {"fsdp.reduce_grad", "corrupt", NULL, 0, PLAIN, 4, -1, -1, -1, "collectives", NULL, "4", ""},
    {"dp.all_reduce_grad", "scale", NULL, 1.5, DDP, 4, -1, -1, -1, "collectives", NULL, "4", ""},
    {"fsdp.reduce_grad", "wrong-format", "bf16", 0, PLAIN, SMALL_EVERYWHERE, "precision", NULL, "0 1 2 3 4 5", ""},
    {"fsdp.reduce_grad", "wrong-format", "bf16", 0, PLAIN, 4, -1, -1, -1, "fsdp.reduce_grad", NULL, "4", ""},
    {"fsdp.reduce_grad", "reuse-buffer", NULL, 0, PLAIN, 4, -1, -1, -1, "async", NULL, "4", ""},
    {"fsdp.reduce_grad", "free-source", NULL, 0, PLAIN, 4, -1, -1, -1, "async", NULL, "4", ""},
    {"fsdp.unshard", "late", NULL, 0, PLAIN, 1, -1, -1, 1, "async", NULL, "1", ""},
    {"fsdp.unshard", "torn", NULL, 0, PLAIN, 1, -1, -1, 1, "async", NULL, "1", ""},
    {"fsdp.unshard", "alias", NULL, 0, PLAIN, 1, -1, -1, 1, "collectives", NULL, "1", ""},
    {"fsdp.unshard", "wrong-group", "self", 0, PLAIN, -1, -1, -1, 1, "fsdp.params", NULL, "0 1 2", ""},
    {"dp.all_reduce_grad", "lose-link", NULL, 0, DDP, 4, -1, -1, -1, "collectives", NULL, "", ""},
    {"dp.all_reduce_grad", "lose-link", NULL, 0, DDP, 1, 1, -1, 1, "hardware", NULL, "", ""},
    {"fsdp.reduce_grad", "premultiply", NULL, 0, PLAIN, SMALL_EVERYWHERE, "collectives", NULL, "0 1 2 3 4 5", "0"},
    {"fsdp.reduce_grad", "copy-lost", NULL, 0, PLAIN, 4, -1, -1, -1, "collectives", NULL, "4", ""},
    {"loss.report_reduce", "average-twice", NULL, 0, PLAIN, SMALL_EVERYWHERE, "collectives", NULL, "0 1 2 3 4 5", "1/D"},
    {"loss.report_broadcast", "wrong-root", NULL, 0, PLAIN, SMALL_EVERYWHERE, "loss.report", NULL, "", ""},
    {"fsdp.grad_divisor", "twice", NULL, 0, PLAIN, SMALL_EVERYWHERE, "fsdp.grad_divisor", NULL, "0 1 2 3 4 5", "1/D"},
    {"fsdp.grad_divisor", "omit", NULL, 0, DDP, 2, -1, -1, -1, "fsdp.grad_divisor", NULL, "2", "D"},
    {"tied.grad_reduce", "skip", NULL, 0, TIED, SMALL_EVERYWHERE, "tied.grad_reduce", NULL, "0 1 2 3 4 5", ""},
    {"tied.grad_reduce", "scale", NULL, 1.5, TIED | DDP, SMALL_EVERYWHERE, "tied.grad_reduce", NULL, "0 1 2 3 4 5", ""},
    {"clip.norm_reduce", "wrong-group", "dp_shard", 0, PLAIN, SMALL_EVERYWHERE, "clip.norm_reduce", NULL, "0 1 2 3 4 5",
     ""},
    {"clip.norm_reduce", "scale", NULL, 1.5, PLAIN, 4, -1, -1, -1, "collectives", NULL, "4", ""},
    {"clip.coefficient", "times", "1/D", 0, PLAIN, 4, -1, -1, -1, "clip.coefficient", NULL, "4", "1/D"},
    {"optimizer.owns", "never", NULL, 0, DDP, 4, -1, -1, -1, "optimizer", NULL, "4", ""},
    {"labels", "shift", NULL, 2, PLAIN, 4, 1, 2, -1, "labels", NULL, "4", ""},
    {"pp.stage_input", "perturb", NULL, 0.01, PLAIN, 4, 1, -1, -1, "pp.send_activation", "pp.send_activation", "4", ""},
    {"fsdp.optimizer_params", "never", NULL, 0, PLAIN, 1, 1, -1, -1, "fsdp.params", NULL, "1", ""},
    {"fsdp.sync_now", "stick", NULL, 0, DDP, SMALL_EVERYWHERE, "fsdp.sync_now", NULL, "0 1 2 3 4 5", ""},
    {"dp.sync_now", "off-by-one", NULL, 0, DDP, SMALL_EVERYWHERE, "dp.accumulation", NULL, "0 1 2 3 4 5", ""},
    {"dp.zero_grad", "always", NULL, 0, PLAIN, 4, -1, -1, -1, "dp.accumulation", NULL, "4", ""},
    {"dp.grad.add", "never", NULL, 0, DDP, 4, 1, -1, -1, "dp.accumulation", NULL, "4", ""},
    {"dp.reduce_source", "never", NULL, 0, PLAIN, 4, -1, -1, -1, "precision", NULL, "4", ""},
    {"dp.grad.reset", "never", NULL, 0, EACH, 4, -1, -1, -1, "dp.accumulation", NULL, "4", ""},
    {"dp.grad.reset", "never", NULL, 0, DDP, 4, -1, -1, -1, "dp.accumulation", NULL, "4", ""},
    {"dp.grad_buffer", "not-zeroed", NULL, 0, DDP, 2, -1, -1, -1, "buffers", NULL, "2", ""},
    {"dp.grad_buffer", "wrong-range", NULL, 5, PLAIN, 2, -1, -1, -1, "buffers", NULL, "2", ""},
    {"dp.param_buffer", "wrong-range", NULL, 5, DDP, 2, -1, -1, -1, "buffers", NULL, "2", ""},
    {"dp.bucket", "lose-range", NULL, 40, DDP, 4, -1, -1, -1, "buckets", NULL, "4", ""},
    {"dp.bucket", "wrong-range", NULL, 3, PLAIN, 4, -1, -1, -1, "buckets", NULL, "4", ""},
    {"ddp.hooks", "never", NULL, 0, DDP, SMALL_EVERYWHERE, "ddp", NULL, "0 1 2 3 4 5", ""},
    {"dp.grad.scale", "times", "1/P", 0, PLAIN, 4, -1, -1, -1, "dp.scaling", NULL, "4", "1/P"},
    {"optimizer.gradients", "never", NULL, 0, TIED, SMALL_EVERYWHERE, "optimizer", NULL, "0 1 2 3 4 5", ""},
    {"clip.parameters", "never", NULL, 0, PLAIN, 4, -1, -1, -1, "grad.norm", NULL, "0 1 2 3 4 5", ""},
    {"clip.gradient", "never", NULL, 0, PLAIN, SMALL_EVERYWHERE, "grad.norm", NULL, "0 1 2 3 4 5", ""},
    {"clip.squares", "times", "2", 0, DDP, 1, -1, -1, -1, "grad.norm", NULL, "1 4", ""},
    /* the sign of a factor does not move the blame to the reduction before it */
    {"amp.loss_scale", "negate", NULL, 0, SCALED, SMALL_EVERYWHERE, "amp.loss_scale", NULL, "0 1 2 3 4 5", "-1"},
    {"pp.grad_scale", "negate", NULL, 0, PLAIN, SMALL_EVERYWHERE, "pp.grad_scale", NULL, "0 1 2 3 4 5", "-1"},
    {"pp.grad_scale", "negate", NULL, 0, DDP, 4, -1, -1, -1, "pp.grad_scale", NULL, "4", "-1"},
    /* which of two reductions, by their own sums: ledgers intact, ledgers too, roundings alone */
    {"hsdp.replicate_reduce", "corrupt", NULL, 0, HSDP, 7, -1, -1, -1, "hsdp.replicate_reduce", NULL, "7 10", ""}, /* of two copies that differ */
    {"hsdp.replicate_reduce", "permute-chunks", NULL, 0, HSDP, SMALL_EVERYWHERE, "hsdp.replicate_reduce", NULL, "", ""},
    {"hsdp.replicate_reduce", "lose-link", NULL, 0, HSDP, SMALL_EVERYWHERE, "hsdp.replicate_reduce", NULL, "", ""},
    {"hsdp.replicate_reduce", "wrong-op", "max", 0, HSDP, SMALL_EVERYWHERE, "hsdp.replicate_reduce", NULL, "", ""},
    {"hsdp.replicate_reduce", "round-hops", NULL, 0, HSDP | EACH, SMALL_EVERYWHERE, "hsdp.replicate_reduce", NULL, "", ""},
    {"hsdp.replicate_reduce", "wrong-format", "bf16", 0, HSDP | SPLIT, SMALL_EVERYWHERE, "precision", NULL, "", ""},
    {"hsdp.replicate_reduce", "late", NULL, 0, HSDP, SMALL_EVERYWHERE, "hsdp.replicate_reduce", NULL, "", ""},
    {"hsdp.replicate_reduce", "reuse-buffer", NULL, 0, HSDP, SMALL_EVERYWHERE, "async", NULL, "", ""},
    {"hsdp.replicate_reduce", "corrupt", NULL, 0, HSDP | TIED, SMALL_EVERYWHERE, "hsdp.replicate_reduce", NULL, "", ""},
    {"fsdp.reduce_grad", "corrupt", NULL, 0, HSDP, 7, -1, -1, -1, "collectives", NULL, "", ""},
    {"fsdp.reduce_grad", "permute-chunks", NULL, 0, TIED, SMALL_EVERYWHERE, "collectives", NULL, "", ""},
    {"tied.grad_reduce", "drop-peer", NULL, 0, TIED, SMALL_EVERYWHERE, "tied.grad_reduce", NULL, "", ""},
    {"tied.grad_reduce", "drop-peer", NULL, 0, TIED | DDP, SMALL_EVERYWHERE, "tied.grad_reduce", NULL, "", ""},
    {"tied.grad_reduce", "round-hops", NULL, 0, TIED, SMALL_EVERYWHERE, "tied.grad_reduce", NULL, "", ""},
    {"tied.grad_reduce", "round-hops", NULL, 0, TIED | HSDP | EACH, SMALL_EVERYWHERE, "tied.grad_reduce", NULL, "", ""},
    {"tied.grad_reduce", "wrong-format", "bf16", 0, TIED, SMALL_EVERYWHERE, "precision", NULL, "", ""},
    /* within the roundings of narrow formats, by what was noted on the way */
    {"dp.bucket", "lose-range", NULL, 40, DDP | BF16, 4, -1, -1, -1, "buckets", NULL, "4", ""},
    {"dp.bucket", "wrong-range", NULL, 3, BF16, SMALL_EVERYWHERE, "buckets", NULL, "0 1 2 3 4 5", ""},
    {"dp.reduce_source", "never", NULL, 0, DDP | EACH, SMALL_EVERYWHERE, "precision", NULL, "0 1 2 3 4 5", ""},
    {"dp.reduce_source", "never", NULL, 0, EACH, 4, -1, -1, -1, "precision", NULL, "4", ""},
    /* a unit that two buckets cut, of which one went well */
    {"pp.grad.flush", "never", NULL, 0, HSDP | SPLIT, SMALL_EVERYWHERE, "pp.grad", NULL, "", ""},
    {"pp.grad.release", "always", NULL, 0, HSDP | SPLIT, SMALL_EVERYWHERE, "pp.grad", NULL, "", ""},
    /* the gather after the update is a call with a wait of its own */
    {"fsdp.unshard", "late", NULL, 0, PARTS, SMALL_EVERYWHERE, "async", NULL, "0 1 2 3 4 5", ""},
    {"fsdp.unshard", "torn", NULL, 0, SPLIT, SMALL_EVERYWHERE, "async", NULL, "0 1 2 3 4 5", ""},
    {"fsdp.unshard", "reuse-buffer", NULL, 0, PARTS, SMALL_EVERYWHERE, "async", NULL, "", ""},
    {"optimizer.update", "perturb", NULL, 0.01, PLAIN, 4, 1, -1, -1, "optimizer", NULL, "4", ""},
};

static struct run_config config_of(int bits)
{
    struct run_config config = small_config();
    if (bits & DDP) small_config_ddp(&config);
    config.model.tie_embeddings = bits & TIED;
    if (bits & EACH) config.layout.sync = SYNC_EACH_MICROBATCH;
    if (bits & SUM) config.layout.reduce_op = FSDP_REDUCE_SUM;
    if (bits & HSDP) config.layout.dp_replicate = 2;
    if (bits & HSDP) config.train.global_batch = 30;
    if (bits & BF16) config.precision.param = config.precision.compute = FORMAT_BF16;
    if (bits & SCALED) config.train.loss_scale = (struct loss_scale_config){.kind = LOSS_SCALING_STATIC, .initial = 1024};
    if (bits & (PARTS | SPLIT)) {
        config.layout.zero = bits & PARTS ? ZERO_1 : ZERO_2;
        config.layout.reshard_after_forward = false;
        config.layout.bucket_elements = 1100;
    }
    return config;
}

static void list_of(const struct diagnosis *diagnosis, char text[128])
{
    text[0] = '\0';
    for (int i = 0; i < diagnosis->ranks_count; i++)
        snprintf(text + strlen(text), 128 - strlen(text), "%s%d", i ? " " : "", diagnosis->ranks[i]);
}

/* Every deviation is traced to its own place, not to what follows from it. */
START_TEST(place_is_found)
{
    const struct case_of *c = &cases[_i];
    struct run_config config = config_of(c->bits);
    struct small_fault fault = {c->site, c->deviation, c->text, c->value, c->rank, c->step, c->microbatch, c->layer};
    struct small_run run = small_run_new(&config, &fault, c->bits & BF16);
    ck_assert_msg(run.hits > 0, "%s:%s is not hit", c->site, c->deviation);
    struct result result = small_judge(&run);
    const struct diagnosis *d = &result.diagnosis;
    char ranks[128];
    list_of(d, ranks);
    ck_assert_msg(result.has_diagnosis, "%s:%s: no diagnosis", c->site, c->deviation);
    ck_assert_msg(!strcmp(d->component, c->component) && !strcmp(d->site, c->due_site ? c->due_site : c->site),
                  "%s:%s is diagnosed as %s at %s: %s", c->site, c->deviation, d->component, d->site, d->summary);
    ck_assert_msg(!c->ranks[0] || !strcmp(ranks, c->ranks), "%s:%s: ranks %s are due, it says %s", c->site,
                  c->deviation, c->ranks, ranks);
    ck_assert_msg(!c->ratio[0] || !strcmp(d->ratio, c->ratio), "%s:%s: ratio %s is due, it says %s", c->site,
                  c->deviation, c->ratio, d->ratio);
    if (c->step >= 0) ck_assert_int_eq(d->place.step, c->step);
    if (c->layer >= 0) ck_assert_int_eq(d->place.layer, c->layer);
    if (c->microbatch >= 0) ck_assert_int_eq(d->place.microbatch, c->microbatch);
    ck_assert(d->summary[0] && d->next[0] && d->evidence_count > 0);
    ck_assert_ptr_null(strchr(d->summary, '{'));
    arena_free(result.arena);
    small_run_free(&run);
}
END_TEST

/* A reduced gradient that is wrong, by what the call got: the collective's doing where what it gave is not the sum of that,
 * else its caller's, who gave it something else. */
START_TEST(collective_or_caller)
{
    struct run_config config = small_config();
    struct small_fault fault = {"fsdp.reduce_grad", "permute-chunks", NULL, 0, -1, -1, -1, 1};
    struct small_run run = small_run_new(&config, &fault, false);
    for (int told = 0; told < 2; told++) {
        for (int r = 0; told && r < run.parallel->ranks; r++) { /* as if that had gone in */
            struct rank_record *rank = &run.parallel->rank[r];
            for (int i = 0; i < rank->reductions.count; i++) {
                struct reduction_fact *fact = &rank->reductions.items[i];
                for (int k = 0; k < 4; k++) fact->received[k] = 0;
                for (int m = 0; m < run.parallel->ranks; m++) {
                    const struct rank_record *member = &run.parallel->rank[m];
                    for (int k = 0; member->stage == rank->stage && k < 4; k++)
                        fact->received[k] += member->reductions.items[i].sent[5 * rank->shard + k];
                }
            }
        }
        struct result result = small_judge(&run);
        ck_assert_str_eq(result.diagnosis.site, "fsdp.reduce_grad");
        ck_assert_str_eq(result.diagnosis.component, told ? "fsdp.reduce_grad" : "collectives");
        arena_free(result.arena);
    }
    small_run_free(&run);
}
END_TEST

/* The worked sentence: ranks, ratio and what its letters are. */
START_TEST(words)
{
    struct run_config config = small_config();
    struct small_fault fault = {"pp.loss.scale", "times", "1/M", 0, SMALL_EVERYWHERE};
    struct small_run run = small_run_new(&config, &fault, false);
    struct result result = small_judge(&run);
    ck_assert_ptr_nonnull(strstr(result.diagnosis.summary, "ranks 3 to 5"));
    ck_assert_ptr_nonnull(strstr(result.diagnosis.summary, "1/M (M = 5)"));
    ck_assert_double_eq_tol(result.diagnosis.evidence[0].differs_by, 0.8, 1e-6);
    ck_assert_str_eq(result.diagnosis.evidence[0].ratio, "1/M");
    ck_assert_int_eq(result.diagnosis.place.microbatch, 0);
    ck_assert_int_eq(result.diagnosis.place.layer, -1);
    ck_assert_str_eq(result.diagnosis.candidates[0].fault, "loss-divided-twice");
    ck_assert_double_gt(result.diagnosis.candidates[0].score, 0.9);
    arena_free(result.arena);
    small_run_free(&run);
}
END_TEST

/* ---- the order of belief, on made findings ---- */

static struct small_run healthy;
static struct result made;

static void make(void)
{
    struct run_config config = small_config();
    healthy = small_run_new(&config, NULL, false);
    memset(&made, 0, sizeof made);
    made.arena = arena_new("made", false);
    made.findings = arena_zalloc(made.arena, 8 * sizeof *made.findings);
}

static struct finding *add(const char *check, const struct site *site, int rank, int step)
{
    struct finding *f = &made.findings[made.findings_count++];
    *f = finding_new(site, place_at(rank, step, -1));
    f->check = check;
    finding_say(f, "made");
    return f;
}

static bool judge(void)
{
    struct evidence evidence = {
        .config = &healthy.parallel->config, .parallel = healthy.parallel, .standalone = healthy.standalone};
    return diagnose(&evidence, &made);
}

static void unmake(void)
{
    arena_free(made.arena);
    small_run_free(&healthy);
}

/* An earlier step beats an earlier place; in one step the earlier place beats; no step comes last. */
START_TEST(first_step_then_first_place)
{
    make();
    add("poison", &site_data_sample, 1, 1);
    add("grad-norm", &site_clip_norm_reduce, 2, 0);
    add("liveness", &site_data_sample, 0, -1);
    ck_assert(judge());
    ck_assert_str_eq(made.diagnosis.site, "clip.norm_reduce");
    add("scale-ledger", &site_fsdp_grad_divisor, 3, 0);
    ck_assert(judge());
    ck_assert_str_eq(made.diagnosis.site, "fsdp.grad_divisor");
    ck_assert_int_eq(made.diagnosis.ranks_count, 1);
    unmake();
}
END_TEST

/* Ranks are those of the component in that step, in order, once each. */
START_TEST(ranks_of_the_component)
{
    make();
    add("contribution", &site_pp_grad_flush, 5, 0);
    add("contribution", &site_pp_grad_clear, 3, 0);
    add("contribution", &site_pp_grad_flush, 5, 0);
    add("contribution", &site_pp_grad_flush, 4, 0);
    add("contribution", &site_pp_grad_flush, 1, 1);
    ck_assert(judge());
    ck_assert_str_eq(made.diagnosis.site, "pp.grad.clear");
    ck_assert_int_eq(made.diagnosis.ranks_count, 3);
    ck_assert_int_eq(made.diagnosis.ranks[0], 3);
    ck_assert_int_eq(made.diagnosis.ranks[2], 5);
    unmake();
}
END_TEST

/* Calls that do not fit together make every number behind them another's. */
START_TEST(a_mismatch_comes_first)
{
    make();
    add("version", &site_fsdp_unshard, 3, 0);
    add("collective-match", &site_fsdp_reduce_grad, 4, 0);
    ck_assert(judge());
    ck_assert_str_eq(made.diagnosis.site, "fsdp.reduce_grad");
    ck_assert_int_eq(made.diagnosis.ranks[0], 4);
    add("contribution", &site_fsdp_sync_now, 4, 0);
    ck_assert(judge());
    ck_assert_str_eq(made.diagnosis.site, "fsdp.sync_now");
    made.findings[1].place.step = 1;
    made.findings[2].place.step = 1;
    ck_assert(judge());
    ck_assert_str_eq(made.diagnosis.site, "fsdp.unshard");
    unmake();
}
END_TEST

/* Nothing that names a place: a finding without a site is no diagnosis, unless the oracle has one to guess by. */
START_TEST(nothing_to_say)
{
    make();
    add("shard-cover", NULL, 1, 0);
    ck_assert(!judge());
    unmake();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("diagnosis");
    TCase *places = tcase_create("places"), *order = tcase_create("order");
    tcase_add_loop_test(places, place_is_found, 0, (int)(sizeof cases / sizeof cases[0]));
    tcase_add_test(places, collective_or_caller);
    tcase_add_test(places, words);
    tcase_add_test(order, first_step_then_first_place);
    tcase_add_test(order, ranks_of_the_component);
    tcase_add_test(order, a_mismatch_comes_first);
    tcase_add_test(order, nothing_to_say);
    tcase_set_timeout(places, 240);
    suite_add_tcase(suite, places);
    suite_add_tcase(suite, order);
    SRunner *runner = srunner_create(suite);
    srunner_set_fork_status(runner, CK_NOFORK);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
