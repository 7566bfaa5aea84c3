/* consumption: each chunk of keys and values is in each rank's output exactly as often as layout and mask say, and each
 * chunk of queries in each rank's gradients of keys and values.
 *
 * Due, of members r and c of a context-parallel group: 1 where some query of r sees some key of c, over the sequences of the
 * micro-batch (joint rows are each member's queries, and keys of the own chunk); else 0 for a ring, and 0 or 1 for methods that
 * take all. Got: the ledgers that move with the numbers, so that what
 * is overwritten is not there, and what is merged twice is there twice. In the workload attention, where no ledger was kept, what
 * outputs alone show (context_inference.h). Integers; limit: exact. Sites by the matrix' word. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/data.h"
#include "scenarios/context_checks.h"
#include "scenarios/facts.h"

struct group_matrix { int first; int size; int *got, *due, *queries /* gradient_times */, *queries_due; int others; int others_rank; };

static const struct consumption_fact *fact_like(const struct rank_record *rank, const struct consumption_fact *like)
{
    for (int i = 0; i < rank->consumptions.count; i++) {
        const struct consumption_fact *f = &rank->consumptions.items[i];
        if (f->step == like->step && f->microbatch == like->microbatch && f->unit == like->unit && f->backward == like->backward) return f;
    }
    return NULL;
}

/* Documents of the micro-batch's sequences; NULL where the mask does not use them. count: sequences. */
static const int32_t *documents_of(const struct evidence *e, const struct rank_record *rank, const struct consumption_fact *f, struct arena *arena, int64_t *ret_count)
{
    const struct run_config *config = e->config;
    *ret_count = 1;
    if (check_is_attention(e)) {
        *ret_count = config->attention.batch;
        const int32_t *all = e->context ? e->context->inputs->documents : NULL;
        if (!e->context && config->model.document_mask) { /* asked before there is evidence: made anew */
            struct attention_inputs_data *in = arena_zalloc(arena, sizeof *in);
            *in = (struct attention_inputs_data){.sequences = (int64_t)config->layout.dp_replicate * config->attention.batch, .seq = config->model.seq, .arena = arena};
            attention_inputs_set_documents(in, config);
            all = in->documents;
        }
        return all ? all + (int64_t)rank->replicate * config->attention.batch * config->model.seq : NULL;
    }
    if (!config->model.document_mask) return NULL;
    int per = layout_sequences_per_microbatch(config), batch = config->train.global_batch;
    int64_t first = ((int64_t)rank->data_rank / layout_cp(&config->layout) * config->layout.microbatches + f->microbatch) * per;
    struct data data = data_pack(&config->data, config->model.seq, (int64_t)(f->step + 1) * batch, arena);
    *ret_count = per;
    return data.documents + ((int64_t)f->step * batch + first) * config->model.seq;
}

static void write_row(const int *row, int size, char text[128])
{
    size_t used = 0;
    text[0] = '\0';
    for (int c = 0; c < size && used + 16 < 128; c++) used += (size_t)snprintf(text + used, 128 - used, "%s%d", c ? " " : "", row[c]);
}

static bool is_finite(const struct evidence *e, int rank)
{
    const struct attention_part *p = e->parallel->rank[rank].attention;
    int64_t count = p ? p->batch * p->rows * e->config->model.heads * e->config->model.head_dim : 0;
    for (int64_t i = 0; i < count; i++) {
        if (!isfinite(p->out[i])) return false;
    }
    return true;
}

/* Are a rank's gradients of keys all 0? Where nobody kept them: as if they were. */
static bool is_zero(const struct evidence *e, int rank)
{
    const struct attention_part *p = e->parallel->rank[rank].attention;
    int64_t count = p && p->dk ? p->batch * p->rows * e->config->model.kv_heads * e->config->model.head_dim : 0;
    for (int64_t i = 0; i < count; i++) {
        if (p->dk[i] != 0) return false;
    }
    return true;
}

/* Did any rank's buffers change while a call at the site was under way? */
static bool was_overwritten(const struct evidence *e, const struct site *site)
{
    for (int r = 0; r < e->parallel->ranks; r++) {
        const struct communicator *c = e->parallel->rank[r].communicator;
        for (int i = 0; c && i < communicator_hazards(c); i++) {
            if (communicator_hazard(c, i)->site == site) return true;
        }
    }
    return false;
}

/* In a backward the same words stand at other places. Blocks that are missing where an output is not finite never arrived. */
static const struct site *site_of(const struct evidence *e, const struct context_inference *inference, bool backward, bool queries, int rank)
{
    bool moves = inference->site == context_site("cp.kv_hop") || inference->site == context_site("cp.rotate") || inference->site == context_site("cp.skip_block");
    if (moves && !queries && !is_finite(e, rank)) return context_moves(e->config, false);
    if (!backward && moves && context_moves(e->config, false) != context_site("cp.kv_hop")) return context_moves(e->config, false); /* without a ring no such site is passed */
    if (!backward) return inference->site;
    bool step = !strcmp(inference->word, "skipped-step") || !strcmp(inference->word, "doubled") || !strcmp(inference->word, "last-block-only") || !strcmp(inference->word, "missing") || !strcmp(inference->word, "nothing");
    const struct context_comparison *c = e->context ? e->context->comparison : NULL;
    bool alone = inference->site == context_site("cp.skip_block") && c && !context_comparison_any(c, CONTEXT_OUT) && !context_comparison_any(c, CONTEXT_LSE); /* the forward left nothing out */
    if (!queries) return step || alone ? context_site("cp.dq_step") : inference->site;
    bool ring = context_moves(e->config, true) == context_site("cp.dkv_hop"), none = !strcmp(inference->word, "nothing");
    if (was_overwritten(e, context_moves(e->config, true))) return context_moves(e->config, true);
    if (none && !is_zero(e, rank)) return context_moves(e->config, true); /* something else is there */
    bool part = !strcmp(inference->word, "skipped-step") || !strcmp(inference->word, "doubled") || !strcmp(inference->word, "nothing");
    return part && (ring || none) ? context_site("cp.dkv_step") : context_moves(e->config, true);
}

static void find_rows(const struct evidence *e, struct check_output *output, const struct group_matrix *g, const struct consumption_fact *f, bool queries, const int64_t *messages)
{
    const int *got = queries ? g->queries : g->got, *due = queries ? g->queries_due : g->due;
    struct consumption_matrix matrix = {g->size, got, due};
    int *room = memory_zalloc((size_t)(2 * g->size * g->size + 1) * sizeof *room);
    consumption_of_ring(e->config, &matrix, room);
    struct context_inference inference = consumption_word(&matrix, queries ? NULL : messages);
    free(room);
    if (inference.word && check_is_attention(e) && e->context && e->context->variations) {
        struct context_inference seen = context_infer_of(e); /* blocks that a mask hides are left out: then the mask is at fault */
        if (seen.word && (!strcmp(seen.word, "masked-too-much") || !strcmp(seen.word, "wrong-group") || !strcmp(seen.word, "wrong-positions") || (!f->backward && !strcmp(seen.word, "first-kept")))) inference = seen;
    } else if (inference.word && !f->backward && consumption_lost_in_merge(e->parallel)) {
        inference = (struct context_inference){.word = "first-kept", .site = context_site("cp.merge"), .step = -1, .first_rank = -1,
                                               .text = "blocks that the backward has are not in the output: they are computed and not merged"};
    }
    for (int r = 0; r < g->size; r++) {
        int wrong = 0;
        for (int c = 0; c < g->size; c++) wrong += got[r * g->size + c] >= 0 && got[r * g->size + c] != due[r * g->size + c];
        check_value(output, wrong, 0);
        if (wrong == 0 || !inference.word) continue;
        char is[128], should[128];
        int rank = mesh_rank_at(&e->parallel->mesh, g->first, "cp", r);
        struct finding finding = finding_new(site_of(e, &inference, f->backward, queries, rank),
                                             check_is_attention(e) ? context_place(e, rank) : place_at_unit(e->config, rank, f->step, f->microbatch, f->unit));
        write_row(got + r * g->size, g->size, is);
        write_row(due + r * g->size, g->size, should);
        finding.expected = 0;
        finding.got = wrong;
        finding_pattern(&finding, inference.word);
        finding_say(&finding, "%s of rank %d holds the %s of members 0 to %d %s times where %s is due: %s", !f->backward ? "the output" : queries ? "the gradient of keys and values" : "the gradient of queries", rank,
                    queries ? "queries" : "keys and values", g->size - 1, is, should, inference.text);
        check_find(output, &finding);
    }
}

static void check_group(const struct evidence *e, struct check_output *output, const struct rank_record *rank, const struct consumption_fact *f, struct arena *arena)
{
    int size = f->size;
    int64_t sequences;
    size_t bytes = (size_t)(size * size + 1) * sizeof(int);
    struct group_matrix g = {rank->rank, size, arena_zalloc(arena, bytes), arena_zalloc(arena, bytes), arena_zalloc(arena, bytes), arena_zalloc(arena, bytes), 0, -1};
    const int32_t *documents = documents_of(e, rank, f, arena, &sequences);
    bool queries = false;
    consumption_due(e->config, documents, sequences, true, g.due);
    for (int r = 0; r < size; r++) {
        int member = mesh_rank_at(&e->parallel->mesh, rank->rank, "cp", r);
        const struct consumption_fact *of = fact_like(&e->parallel->rank[member], f);
        for (int c = 0; c < size; c++) {
            g.got[r * size + c] = of ? of->times[c] : -1;
            g.queries[r * size + c] = of && of->gradient_times ? of->gradient_times[c] : -1;
            g.queries_due[r * size + c] = g.due[c * size + r];
            queries = queries || (of && of->gradient_times);
        }
        if (of && of->others && g.others++ == 0) g.others_rank = member;
    }
    consumption_forgive(e->config, g.got, g.due, size);
    consumption_forgive(e->config, g.queries, g.queries_due, size);
    int64_t *messages = arena_zalloc(arena, (size_t)(e->parallel->ranks + 1) * sizeof *messages), *of_group = arena_zalloc(arena, (size_t)(size + 1) * sizeof *of_group);
    context_messages(e->parallel, messages);
    for (int r = 0; r < size; r++) of_group[r] = messages[mesh_rank_at(&e->parallel->mesh, rank->rank, "cp", r)];
    if (g.others == 0) { /* else what is missing is what came in the place of it */
        find_rows(e, output, &g, f, false, of_group);
        if (queries) find_rows(e, output, &g, f, true, NULL);
    }
    check_value(output, g.others, 0);
    if (g.others == 0) return;
    struct finding finding = finding_new(context_site(f->backward ? "cp.dkv_hop" : "cp.kv_hop"), place_at_unit(e->config, g.others_rank, f->step, f->microbatch, f->unit));
    finding_pattern(&finding, "stale");
    finding_say(&finding, "rank %d's %s holds keys and values of another step, micro-batch or layer", g.others_rank, f->backward ? "gradient" : "output");
    check_find(output, &finding);
}

/* No ledger: what outputs show. */
static bool from_outputs(const struct evidence *e, struct check_output *output)
{
    int size = layout_cp(&e->config->layout);
    bool any = false;
    struct arena *arena = arena_new("consumption by outputs", false);
    for (int group = 0; group < e->config->layout.dp_replicate; group++) {
        size_t bytes = (size_t)(size * size + 1) * sizeof(int);
        struct group_matrix g = {.first = group * size, .size = size, .got = arena_zalloc(arena, bytes), .due = arena_zalloc(arena, bytes)};
        struct consumption_fact like = {.step = 0, .microbatch = 0, .unit = 1, .size = size};
        int64_t *messages = arena_zalloc(arena, (size_t)(e->parallel->ranks + 1) * sizeof *messages), batch = e->config->attention.batch;
        const int32_t *documents = e->context->inputs->documents;
        consumption_due(e->config, documents ? documents + group * batch * e->config->model.seq : NULL, batch, false, g.due);
        if (!context_inferred_times(e->config, e->context->variations, group, g.got)) continue;
        any = true;
        check_value(output, 0, 0);
        context_messages(e->parallel, messages);
        find_rows(e, output, &g, &like, false, messages + group * size);
    }
    arena_free(arena);
    return any;
}

static void run(const struct evidence *e, struct check_output *output)
{
    const struct record *record = e->parallel;
    bool any = false;
    if (layout_cp(&e->config->layout) == 1 && !check_is_attention(e)) {
        check_skip(output, "there is no context parallelism (parallel.cp 1)");
        return;
    }
    for (int r = 0; r < record->ranks; r++) {
        const struct rank_record *rank = &record->rank[r];
        if (mesh_coordinate(&record->mesh, r, "cp") != 0) continue;
        for (int i = 0; i < rank->consumptions.count; i++) {
            struct arena *arena = arena_new("consumption", false);
            any = true;
            check_value(output, 0, 0);
            check_group(e, output, rank, &rank->consumptions.items[i], arena);
            arena_free(arena);
        }
    }
    if (!any && check_is_attention(e) && e->context) any = from_outputs(e, output);
    if (!any) check_skip(output, "no ledger of keys and values was kept");
}

const struct check check_consumption = {
    .id = "consumption",
    .proves = "each chunk of keys and values is in the output of each chunk of queries exactly as often as layout and mask say, and "
              "merged there, not written over; in the backward gradients likewise",
    .tier = "default",
    .measures = "chunks of a rank",
    .run = run,
    .workloads = CHECK_IN(WORKLOAD_TRAIN) | CHECK_IN(WORKLOAD_ATTENTION) | CHECK_IN(WORKLOAD_DENOISE),
};
