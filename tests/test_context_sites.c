/* test_context_sites: each place of split attention where it can go wrong, gone wrong: what changes by it and what does not, against the
 * healthy run, bit for bit. Every cp.* site of model/sites.def that split attention passes is here. */
#include "tests/context_support.h"
#include "tests/support/run_suite.h"

#include "model/deviations.h"

struct wrong {
    const char *site, *deviation, *text;   /* text: the deviation's argument */
    double value;
    const char *method, *layout, *merge;
    int64_t seq, joint;
    bool causal; int64_t window; int documents; bool sinks, reversed, tree;
    int rank, hop;                         /* -1: everywhere */
    const char *changes;                   /* of "oqkv": out, dq, dk, dv; "?": not finished; "n": nothing */
    int size;                              /* 0: 4 */
    bool waits;                            /* no overlap */
    double by;                             /* inputs q times this; 0: 1 */
};

static const struct wrong wrongs[] = {
    {.site = "cp.layout", .deviation = "never", .method = "ring", .layout = "zigzag", .causal = true, .changes = "oqkv"},
    {.site = "cp.layout", .deviation = "never", .method = "all_gather", .layout = "contiguous", .causal = true, .changes = "oqkv"},
    {.site = "cp.layout", .deviation = "never", .method = "ring", .layout = "zigzag", .changes = "n"}, /* no mask, no matter */
    {.site = "cp.shard_tail", .deviation = "lose-range", .method = "ring", .layout = "contiguous", .seq = 41, .changes = "oqkv"},
    {.site = "cp.shard_tail", .deviation = "lose-range", .method = "ulysses", .layout = "striped", .seq = 41, .changes = "oqkv"},
    {.site = "cp.shard_tail", .deviation = "lose-range", .method = "ring", .layout = "contiguous", .seq = 40, .changes = "n"}, /* none is larger */
    {.site = "cp.axes", .deviation = "never", .method = "ring", .layout = "contiguous", .changes = "oqkv"},
    {.site = "cp.axes", .deviation = "never", .method = "all_gather", .layout = "zigzag", .causal = true, .changes = "oqkv"},
    {.site = "cp.head_split", .deviation = "never", .method = "ulysses", .layout = "zigzag", .causal = true, .changes = "oqkv"},
    {.site = "cp.head_split", .deviation = "never", .method = "usp", .layout = "zigzag", .causal = true, .changes = "oqkv"},
    {.site = "cp.seq_to_head", .deviation = "scale", .value = 1.5, .method = "ulysses", .layout = "zigzag", .changes = "oqkv"},
    {.site = "cp.head_to_seq", .deviation = "permute-chunks", .method = "usp", .layout = "contiguous", .changes = "oqkv"},
    {.site = "cp.kv_gather", .deviation = "permute-chunks", .method = "all_gather", .layout = "zigzag", .causal = true, .changes = "oqkv"},
    {.site = "cp.gather_order", .deviation = "never", .method = "all_gather", .layout = "zigzag", .causal = true, .changes = "oqkv"},
    {.site = "cp.gather_order", .deviation = "never", .method = "all_gather", .layout = "contiguous", .causal = true, .changes = "n"}, /* the same order */
    {.site = "cp.kv_grad_scatter", .deviation = "wrong-op", .text = "avg", .method = "all_gather", .layout = "zigzag", .changes = "kv"},
    {.site = "cp.rotate", .deviation = "never", .method = "ring", .layout = "contiguous", .changes = "oqkv"},
    {.site = "cp.rotate", .deviation = "never", .method = "usp", .layout = "contiguous", .changes = "oqkv"},
    {.site = "cp.order", .deviation = "never", .method = "ring", .layout = "contiguous", .size = 3, .changes = "?"},
    {.site = "cp.order", .deviation = "never", .method = "ring", .layout = "contiguous", .changes = "n"}, /* even ranks do not notice */
    {.site = "cp.forward_received", .deviation = "never", .method = "ring", .layout = "zigzag", .seq = 40, .causal = true, .changes = "oqkv"},
    {.site = "cp.forward_received", .deviation = "never", .method = "ring", .layout = "zigzag", .seq = 40, .size = 2, .changes = "n"}, /* a neighbour's is all there is */
    {.site = "cp.kv_hop", .deviation = "corrupt", .method = "ring", .layout = "zigzag", .rank = 1, .hop = 2, .changes = "oqkv"},
    {.site = "cp.kv_hop", .deviation = "late", .method = "ring", .layout = "zigzag", .hop = 3, .rank = -1, .changes = "oqk"}, /* values: dv does without them */
    {.site = "cp.kv_hop", .deviation = "late", .method = "ring", .layout = "zigzag", .hop = 2, .rank = -1, .changes = "n"}, /* the next hop's start waits */
    {.site = "cp.kv_hop", .deviation = "late", .method = "ring", .layout = "zigzag", .hop = 2, .rank = -1, .changes = "oqk", .waits = true}, /* without overlap it does not */
    {.site = "cp.kv_hop", .deviation = "torn", .method = "ring", .layout = "zigzag", .hop = 3, .rank = -1, .changes = "oqk"},
    {.site = "cp.kv_hop", .deviation = "free-source", .method = "ring", .layout = "zigzag", .hop = 1, .rank = 2, .changes = "oqkv"},
    {.site = "cp.kv_hop", .deviation = "swap-order", .method = "ring", .layout = "zigzag", .hop = 1, .rank = 2, .changes = "oqkv"},
    {.site = "cp.kv_hop", .deviation = "wrong-peer", .method = "ring", .layout = "contiguous", .rank = 2, .hop = -1, .changes = "?"},
    {.site = "cp.unpack", .deviation = "never", .method = "ring", .layout = "striped", .seq = 41, .changes = "oqkv"},
    {.site = "cp.unpack", .deviation = "never", .method = "ring", .layout = "striped", .seq = 40, .changes = "n"}, /* all are as long */
    {.site = "cp.skip_block", .deviation = "ignore-guard", .method = "ring", .layout = "contiguous", .changes = "oqkv"},
    {.site = "cp.skip_block", .deviation = "ignore-guard", .method = "ring", .layout = "zigzag", .causal = true, .changes = "oqkv"},
    {.site = "cp.skip_block", .deviation = "ignore-guard", .method = "ring", .layout = "contiguous", .causal = true, .changes = "n"}, /* there it is right */
    {.site = "cp.skip_block", .deviation = "negate", .method = "ring", .layout = "contiguous", .causal = true, .changes = "oqkv"},
    {.site = "cp.skip_block", .deviation = "always", .method = "ring", .layout = "striped", .causal = true, .hop = 2, .rank = -1, .changes = "oqkv"},
    {.site = "cp.skip_block", .deviation = "always", .method = "usp", .layout = "striped", .hop = 1, .rank = -1, .changes = "oqkv"},
    {.site = "cp.joint_step", .deviation = "never", .method = "ring", .layout = "contiguous", .joint = 3, .causal = true, .changes = "oqkv"},
    {.site = "cp.joint_once", .deviation = "never", .method = "ring", .layout = "zigzag", .joint = 3, .changes = "oqkv"},
    {.site = "cp.mask_passed", .deviation = "never", .method = "ring", .layout = "zigzag", .causal = true, .changes = "oqkv"},
    {.site = "cp.mask_passed", .deviation = "never", .method = "ulysses", .layout = "zigzag", .causal = true, .changes = "oqkv"},
    {.site = "cp.diagonal_mask", .deviation = "never", .method = "ring", .layout = "contiguous", .causal = true, .changes = "oqkv"},
    {.site = "cp.window_passed", .deviation = "never", .method = "all_gather", .layout = "contiguous", .window = 6, .changes = "oqkv"},
    {.site = "cp.documents_passed", .deviation = "never", .method = "ring", .layout = "document", .causal = true, .documents = 1, .changes = "oqkv"},
    {.site = "cp.softmax_scale", .deviation = "omit", .method = "ulysses", .layout = "contiguous", .changes = "oqkv"},
    {.site = "cp.softmax_scale", .deviation = "set", .text = "0", .method = "ring", .layout = "contiguous", .changes = "oqkv"},
    {.site = "cp.lse_index", .deviation = "never", .method = "ring", .layout = "zigzag", .changes = "oqkv"},
    {.site = "cp.lse", .deviation = "wrong-base", .method = "ring", .layout = "zigzag", .changes = "oqkv"},
    {.site = "cp.lse", .deviation = "round", .text = "bf16", .method = "usp", .layout = "zigzag", .changes = "oqkv"},
    {.site = "cp.sink", .deviation = "never", .method = "all_gather", .layout = "zigzag", .sinks = true, .changes = "oqkv"},
    {.site = "cp.sink_once", .deviation = "never", .method = "ring", .layout = "zigzag", .sinks = true, .changes = "oqkv"},
    {.site = "cp.out_init", .deviation = "not-zeroed", .method = "ring", .layout = "zigzag", .changes = "oqkv"},
    {.site = "cp.out_init", .deviation = "not-zeroed", .method = "ring", .layout = "zigzag", .merge = "late", .tree = true, .changes = "oqkv"},
    {.site = "cp.merge", .deviation = "keep-last", .method = "ring", .layout = "zigzag", .changes = "oqkv"},
    {.site = "cp.merge", .deviation = "keep-last", .method = "ring", .layout = "zigzag", .merge = "late", .changes = "oqkv"},
    {.site = "cp.kv_block", .deviation = "never", .method = "ring", .layout = "zigzag", .hop = 1, .rank = -1, .changes = "oqkv"},
    {.site = "cp.kv_block", .deviation = "never", .method = "ring", .layout = "zigzag", .merge = "max_sum", .tree = true, .hop = 0, .rank = -1, .changes = "oqkv"},
    {.site = "cp.merge", .deviation = "average", .method = "ring", .layout = "zigzag", .changes = "oqkv"},
    {.site = "cp.merge", .deviation = "keep-first", .method = "ring", .layout = "zigzag", .merge = "logaddexp", .changes = "oqkv"},
    {.site = "cp.merge", .deviation = "sum", .method = "usp", .layout = "zigzag", .merge = "max_sum", .tree = true, .changes = "oqkv"},
    {.site = "cp.merge_stable", .deviation = "never", .method = "ring", .layout = "zigzag", .merge = "sigmoid", .by = 400, .changes = "oqkv"},
    {.site = "cp.merge_stable", .deviation = "never", .method = "ring", .layout = "zigzag", .merge = "logaddexp", .by = 400, .changes = "oqkv"},
    {.site = "cp.merge_stable", .deviation = "never", .method = "ring", .layout = "zigzag", .merge = "max_sum", .by = 400, .changes = "oqkv"},
    {.site = "cp.merge_stable", .deviation = "never", .method = "ring", .layout = "zigzag", .merge = "late", .by = 400, .changes = "oqkv"},
    {.site = "cp.accumulate", .deviation = "round", .text = "bf16", .method = "ring", .layout = "zigzag", .changes = "oqk"},
    {.site = "cp.accumulate", .deviation = "round", .text = "bf16", .method = "ring", .layout = "zigzag", .merge = "late", .changes = "oqk"},
    {.site = "cp.backward_stats", .deviation = "never", .method = "ring", .layout = "zigzag", .changes = "qkv"},
    {.site = "cp.delta", .deviation = "never", .method = "ulysses", .layout = "zigzag", .changes = "qk"},
    {.site = "cp.dq_step", .deviation = "never", .method = "ring", .layout = "zigzag", .hop = 3, .rank = -1, .changes = "q"},
    {.site = "cp.dkv_step", .deviation = "never", .method = "ring", .layout = "zigzag", .hop = 3, .rank = -1, .changes = "kv"},
    {.site = "cp.dq", .deviation = "round", .text = "bf16", .method = "ring", .layout = "zigzag", .changes = "q"},
    {.site = "cp.grad_unpack", .deviation = "never", .method = "ring", .layout = "zigzag", .hop = 4, .rank = -1, .changes = "kv"},
    {.site = "cp.dkv_direction", .deviation = "never", .method = "ring", .layout = "zigzag", .seq = 40, .changes = "kv"},
    {.site = "cp.dkv_home", .deviation = "never", .method = "ring", .layout = "zigzag", .seq = 40, .changes = "kv"},
    {.site = "cp.dkv_home", .deviation = "never", .method = "ring", .layout = "zigzag", .reversed = true, .changes = "kv"},
    {.site = "cp.dkv_hop", .deviation = "wrong-format", .text = "bf16", .method = "ring", .layout = "zigzag", .changes = "kv"},
    {.site = "cp.dkv_hop", .deviation = "late", .method = "ring", .layout = "zigzag", .reversed = true, .changes = "v"}, /* the wait for values waits for keys */
};
enum { WRONGS = sizeof wrongs / sizeof *wrongs };

static const struct deviation *deviation_of(const struct site *site, const char *name)
{
    int count = site->kind == SITE_COMMUNICATION ? communication_deviation_count() : model_deviation_count();
    for (int i = 0; i < count; i++) {
        const struct deviation *d = site->kind == SITE_COMMUNICATION ? communication_deviation(i) : model_deviation(i);
        if (d->kind == site->kind && !strcmp(d->name, name) && (d->needs & site->facets) == d->needs) return d;
    }
    ck_abort_msg("%s has no deviation %s", site->name, name);
    return NULL;
}

static struct trial trial_of(const struct wrong *w, struct site_plan *plan)
{
    struct trial t = {.method = w->method, .layout = w->layout, .merge = w->merge ? w->merge : "sigmoid", .tree = w->tree, .overlap = !w->waits, .reversed = w->reversed,
                      .size = w->size ? w->size : 4, .ulysses = 2, .batch = 2, .seq = w->seq ? w->seq : 41, .joint = w->joint, .heads = 8, .kv_heads = 4, .dim = 6,
                      .causal = w->causal, .window = w->window, .documents_kind = w->documents, .sinks = w->sinks, .storage = FORMAT_FP32, .activation = FORMAT_FP32,
                      .softmax = FORMAT_FP32, .ledgers = true, .plan = plan, .q_times = w->by};
    if (t.size == 3) t.heads = 6, t.kv_heads = 3;
    return t;
}

static struct site_plan *plan_of(const struct wrong *w, int size)
{
    const struct site *site = model_site_find(w->site);
    ck_assert_msg(site, "no site %s", w->site);
    struct armed armed = {.site = site, .deviation = deviation_of(site, w->deviation), .value = w->value};
    /* 0 in the table is "everywhere" for hop and rank where the other is not given either */
    bool somewhere = w->rank != 0 || w->hop != 0 || !strcmp(w->site, "cp.kv_block");
    if (somewhere && w->rank >= 0) armed.rank = (struct at_list){1, {w->rank}};
    if (somewhere && w->hop >= 0) armed.hop = (struct at_list){1, {w->hop}};
    if (w->text) snprintf(armed.text, sizeof armed.text, "%s", w->text);
    struct site_plan *plan = site_plan_new(size);
    site_plan_arm(plan, &armed);
    return plan;
}

START_TEST(what_changes)
{
    const struct wrong *w = &wrongs[_i];
    struct trial healthy = trial_of(w, NULL);
    struct site_plan *plan = plan_of(w, healthy.size);
    struct trial t = trial_of(w, plan);
    trial_run(&healthy);
    ck_assert_int_eq(healthy.ranks.outcome, MACHINE_FINISHED);
    trial_run(&t);
    bool finished = t.ranks.outcome == MACHINE_FINISHED;
    ck_assert_msg(site_hits(plan, 0) > 0 || !strcmp(w->changes, "n"), "%s %s: never passed", w->site, w->method);
    if (w->changes[0] == '?') ck_assert_msg(!finished, "%s: finished", w->site);
    else ck_assert_msg(finished, "%s: not finished", w->site);
    static const struct { char letter; int which; } parts[] = {{'o', OUT}, {'q', DQ}, {'k', DK}, {'v', DV}};
    for (int i = 0; i < 4 && finished; i++) {
        int which = parts[i].which;
        bool changed = false;
        for (size_t e = 0; e < whole_count(&t, which); e++) {
            double a = t.whole[which][e], b = healthy.whole[which][e];
            ck_assert(isfinite(b));
            changed = changed || !(a == b);
        }
        ck_assert_msg(changed == (strchr(w->changes, parts[i].letter) != NULL), "%d: %s %s %s %s: %s %s", _i, w->site, w->deviation, w->method, w->layout, whole_names[which],
                      changed ? "changed" : "did not change");
    }
    trial_done(&healthy);
    trial_done(&t);
    site_plan_free(plan);
}
END_TEST

/* What may do nothing: what is due already, what needs a step before, a sum, or a call after it. */
static bool may_do_nothing(const char *deviation)
{
    static const char *const names[] = {"always", "stick", "omit", "twice", "per-accumulation-step", "wrong-range", "alias", "swap-calls", "stale", "wrong-slot", "wrong-group",
                                        "late", "torn", "duplicate", "average-first", "average-twice"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (!strcmp(names[i], deviation)) return true;
    }
    return false;
}

/* Every deviation that a site can have, at each site above: the run ends one way or another, and something is not as it was. */
START_TEST(every_deviation_does_something)
{
    const struct wrong *w = &wrongs[_i];
    const struct site *site = model_site_find(w->site);
    if (!strcmp(w->changes, "n")) return;
    struct trial healthy = trial_of(w, NULL);
    trial_run(&healthy);
    int count = site->kind == SITE_COMMUNICATION ? communication_deviation_count() : model_deviation_count();
    for (int i = 0; i < count; i++) {
        const struct deviation *d = site->kind == SITE_COMMUNICATION ? communication_deviation(i) : model_deviation(i);
        if (d->kind != site->kind || (d->needs & site->facets) != d->needs) continue;
        struct wrong one = *w;
        one.deviation = d->name;
        if (site->kind == SITE_COMMUNICATION) one.text = !strcmp(d->name, "wrong-format") ? "bf16" : NULL, one.value = !strcmp(d->name, "scale") ? 1.5 : 0;
        struct site_plan *plan = plan_of(&one, healthy.size);
        struct trial t = trial_of(&one, plan);
        trial_run(&t);
        bool changed = t.ranks.outcome != MACHINE_FINISHED;
        for (int which = OUT; which < D_SINKS && !changed; which++) {
            for (size_t e = 0; e < whole_count(&t, which); e++) changed = changed || !(t.whole[which][e] == healthy.whole[which][e]);
        }
        ck_assert_msg(changed || may_do_nothing(d->name), "%s %s (%d, %s) does nothing", w->site, d->name, _i, w->method);
        trial_done(&t);
        site_plan_free(plan);
    }
    trial_done(&healthy);
}
END_TEST

/* A run that watches for faults, but has none of them due, is the healthy one. */
START_TEST(a_plan_alone_is_nothing)
{
    for (int m = 0; m < context_method_count(); m++) {
        struct wrong w = {.site = "cp.skip_block", .deviation = "always", .method = context_method_at(m)->name, .layout = "striped", .causal = true, .rank = 9, .hop = 7, .joint = 2, .sinks = true};
        struct trial healthy = trial_of(&w, NULL), t = healthy;
        t.plan = plan_of(&w, 16);
        trial_run(&healthy);
        trial_run(&t);
        for (int which = OUT; which < D_SINKS; which++) ck_assert(!memcmp(healthy.whole[which], t.whole[which], whole_count(&t, which) * sizeof(double)));
        trial_done(&healthy);
        trial_done(&t);
        site_plan_free(t.plan);
    }
}
END_TEST

/* One member and one hop: its rows alone change, and its ledger says what its numbers say. */
START_TEST(where_it_happens)
{
    struct wrong w = {.site = "cp.skip_block", .deviation = "always", .method = "ring", .layout = "contiguous", .seq = 40, .rank = 2, .hop = 3};
    struct trial healthy = trial_of(&w, NULL);
    struct site_plan *plan = plan_of(&w, 4);
    struct trial t = trial_of(&w, plan);
    trial_run(&healthy);
    trial_run(&t);
    size_t row = (size_t)(t.heads * t.dim);
    for (size_t e = 0; e < whole_count(&t, OUT); e++) {
        int member = (int)(e / row % 40) / 10;
        ck_assert((t.whole[OUT][e] != healthy.whole[OUT][e]) == (member == 2));
    }
    for (int q = 0; q < 4; q++)
        for (int c = 0; c < 4; c++) {
            ck_assert_int_eq(t.times[q][c], !(q == 2 && c == 3)); /* member 2's block of hop 3 is member 3's */
            ck_assert_int_eq(t.gradient_times[c][q], !(q == 2 && c == 3));
        }
    trial_done(&healthy);
    trial_done(&t);
    site_plan_free(plan);
}
END_TEST

/* How often member q's output has member c's block, of four, no mask. */
static int twice_of_neighbour(int q, int c) { return c == (q + 3) % 4 ? 2 : 1; }
static int own_alone(int q, int c) { return c == q; }
static int last_alone(int q, int c) { return c == (q + 1) % 4; }
static int neighbour_for_all(int q, int c) { return c == q ? 1 : c == (q + 3) % 4 ? 3 : 0; }
static int past_alone(int q, int c) { return c <= q; }
static int all_once(int q, int c) { (void)q, (void)c; return 1; }
static int all_but_last(int q, int c) { return c != (q + 1) % 4; }
static int shifted(int q, int c) { return c == q || c == (q + 2) % 4 ? 1 : c == (q + 3) % 4 ? 2 : 0; }

/* What is done wrong stands in the ledgers, which moved with the numbers. */
START_TEST(ledgers_say_it)
{
    static const struct { struct wrong w; int (*forward)(int, int), (*gradient)(int, int) /* of dk, dv: [owner][member] transposed */; } said[] = {
        {{.site = "cp.kv_block", .deviation = "never", .hop = 1, .rank = -1}, twice_of_neighbour, all_once},
        {{.site = "cp.rotate", .deviation = "never"}, own_alone, own_alone},
        {{.site = "cp.merge", .deviation = "keep-last"}, last_alone, all_once},
        {{.site = "cp.forward_received", .deviation = "never"}, neighbour_for_all, all_once},
        {{.site = "cp.skip_block", .deviation = "ignore-guard"}, past_alone, past_alone},
        {{.site = "cp.skip_block", .deviation = "always", .hop = 3, .rank = -1}, all_but_last, all_but_last},
        {{.site = "cp.dkv_step", .deviation = "never", .hop = 3, .rank = -1}, all_once, all_but_last},
        {{.site = "cp.forward_received", .deviation = "never", .hop = 2, .rank = -1}, NULL, NULL},
        {{.site = "cp.merge", .deviation = "keep-last", .tree = true}, NULL, NULL},
    };
    for (size_t i = 0; i < sizeof said / sizeof *said; i++)
        for (int way = 0; way < 2; way++) {
            struct wrong w = said[i].w;
            w.method = "ring", w.layout = "striped", w.seq = 40, w.merge = way ? "late" : "max_sum";
            struct site_plan *plan = plan_of(&w, 4);
            struct trial t = trial_of(&w, plan);
            trial_run(&t);
            ck_assert_int_eq(t.others, 0);
            for (int q = 0; q < 4; q++)
                for (int c = 0; c < 4; c++) {
                    if (said[i].forward) ck_assert_msg(t.times[q][c] == said[i].forward(q, c), "%s: %d has %d %d times", w.site, q, c, t.times[q][c]);
                    if (said[i].gradient) ck_assert_msg(t.gradient_times[c][q] == said[i].gradient(q, c), "%s: gradient of %d has %d %d times", w.site, c, q, t.gradient_times[c][q]);
                    if (i == 7) ck_assert_int_eq(t.times[q][c], shifted(q, c));
                }
            trial_done(&t);
            site_plan_free(plan);
        }
}
END_TEST

/* Every site that split attention passes has a line above. Training passes the rest. */
START_TEST(every_site_is_here)
{
    static const char *const elsewhere[] = {"cp.position", "cp.labels"};
    int found = 0;
    for (int i = 0; i < model_site_count(); i++) {
        const char *name = model_site(i)->name;
        bool here = false;
        if (strncmp(name, "cp.", 3)) continue;
        for (int w = 0; w < WRONGS; w++) here = here || !strcmp(wrongs[w].site, name);
        for (size_t e = 0; e < sizeof elsewhere / sizeof *elsewhere; e++) here = here || !strcmp(elsewhere[e], name);
        found += here;
        ck_assert_msg(here, "%s is not here", name);
    }
    ck_assert_int_ge(found, 40);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("context_sites");
    TCase *tests = tcase_create("sites");
    tcase_set_timeout(tests, 300);
    tcase_add_loop_test(tests, what_changes, 0, WRONGS);
    tcase_add_loop_test(tests, every_deviation_does_something, 0, WRONGS);
    tcase_add_test(tests, a_plan_alone_is_nothing);
    tcase_add_test(tests, where_it_happens);
    tcase_add_test(tests, ledgers_say_it);
    tcase_add_test(tests, every_site_is_here);
    suite_add_tcase(suite, tests);
    return run_suite(suite, CK_NOFORK);
}
