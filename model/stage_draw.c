/* stage_draw: the tokens, targets and documents of a micro-batch. With context parallelism a rank has the rows at its own
 * positions of each sequence (model/context/context.h), in their order: tokens and documents of these, and as the target of
 * each what follows it in the whole sequence, wherever the next row is. */
#include "model/choices.h"
#include "model/program.h"
#include "sim/hash.h"

/* Each position's target: due is its own of the data. */
static void draw_labels(struct program *p, int32_t *targets, const int32_t *positions, int64_t sequence, int64_t of_rank_0, struct where where)
{
    const struct data *data = &p->run->data;
    int64_t seq = data->seq, count = data->sequences * seq;
    for (int64_t t = 0; t < p->seq; t++) {
        int64_t at = positions[t];
        targets[t] = data->targets[index_site(p->run->plan, &site_labels, where, sequence * seq + at, of_rank_0 * seq + at, count)];
    }
}

/* What a shift within the shard makes of them: a row's target is the shard's next token; the last has none. */
static void shift_in_shard(const struct program *p, int32_t *targets, const int32_t *tokens, const int32_t *documents)
{
    for (int64_t t = 0; t < p->seq; t++) {
        bool follows = t + 1 < p->seq && documents[t] == documents[t + 1] && documents[t] != DOCUMENT_PADDING;
        targets[t] = follows ? tokens[t + 1] : TARGET_IGNORED;
    }
}

/* A token that a run reads in another's place; targets stay. */
static void edit_token(const struct program *p, int32_t *tokens, const int32_t *positions, int64_t sequence)
{
    const struct token_edit *edit = p->run->options->edit;
    if (!edit || edit->sequence != sequence || p->step != 0) return;
    for (int64_t t = 0; t < p->seq; t++) {
        if (positions[t] == edit->position) tokens[t] = (int32_t)((tokens[t] + edit->by) % p->run->config->model.vocab);
    }
}

/* Where this rank's rows stand in the sequence. */
static void place(const struct program *p, const int32_t *documents, int32_t *ret_positions)
{
    if (p->context_layout) {
        p->context_layout->positions(p->run->config->model.seq, layout_cp(&p->run->config->layout), p->record->cp, documents, ret_positions);
        return;
    }
    for (int32_t t = 0; t < p->seq; t++) ret_positions[t] = t;
}

/* Those that this rank has between tensor-parallel parts. */
static void place_slices(const struct program *p, struct microbatch *mb, int per)
{
    int64_t slice = program_slice_seq(p);
    mb->slice_positions = mb->positions;
    if (slice == p->seq) return;
    int32_t *positions = arena_alloc(p->context_layout ? p->record->arena : mb->arena, (size_t)(per * slice + 1) * sizeof *positions);
    mb->slice_positions = positions;
    for (int64_t i = 0; i < per * slice; i++)
        positions[i] = mb->positions[i / slice * p->seq + slice * p->record->tp + i % slice];
}

/* As RoPE takes them: counted over the whole sequence. */
static void place_turns(struct program *p, struct microbatch *mb, int64_t rows, struct where where)
{
    mb->turn_positions = mb->positions;
    if (!p->context_layout || choice_site(p->run->plan, p->record, &site_cp_position, where, -1, true)) return;
    int32_t *positions = arena_alloc(mb->arena, (size_t)(rows + 1) * sizeof *positions);
    mb->turn_positions = positions;
    for (int64_t i = 0; i < rows; i++) positions[i] = (int32_t)(i % p->seq);
}

static void note_sample(struct program *p, const struct microbatch *mb, int microbatch, int per, const int64_t *drawn)
{
    size_t bytes = (size_t)(per * p->seq) * sizeof(int32_t);
    struct sample_fact fact = {.step = p->step, .microbatch = microbatch, .count = per, .sequences = drawn, .first_sequence = (int)mb->first_sequence,
                               .rows = (int)p->seq, .positions = program_facts_positions(p, mb->positions)};
    struct hash tokens, targets;
    uint64_t digest[2];
    hash_init(&tokens);
    hash_init(&targets);
    hash_bytes(&tokens, mb->tokens, bytes);
    hash_bytes(&targets, mb->targets, bytes);
    hash_finish(&tokens, digest);
    fact.token_hash = digest[0];
    hash_finish(&targets, digest);
    fact.target_hash = digest[0];
    record_push(p->record, samples, fact);
}

/* The sequences of a micro-batch: due are (d * M + micro-batch) * b + i of the step, d among the data ranks that read different ones. */
void stage_draw(struct program *p, int microbatch)
{
    const struct run_config *config = p->run->config;
    const struct data *data = &p->run->data;
    struct microbatch *mb = stage_open(p, microbatch);
    int per = layout_sequences_per_microbatch(config), seq = config->model.seq;
    size_t bytes = (size_t)(per * p->seq + 1) * sizeof(int32_t), whole = (size_t)seq * sizeof(int32_t);
    int64_t *drawn = arena_alloc(p->record->arena, (size_t)per * sizeof *drawn);
    mb->tokens = arena_alloc(mb->arena, bytes);
    mb->targets = arena_alloc(mb->arena, bytes);
    mb->documents = arena_alloc(mb->arena, bytes);
    mb->positions = arena_alloc(p->context_layout ? p->record->arena /* facts point to them */ : mb->arena, bytes);
    mb->whole_documents = p->context_layout ? arena_alloc(mb->arena, (size_t)per * whole) : mb->documents;
    mb->first_sequence = layout_first_sequence(config, p->data_rank, microbatch);
    struct where where = program_where(p, microbatch, -1);
    for (int i = 0; i < per; i++) {
        int64_t step_first = (int64_t)p->step * config->train.global_batch;
        int64_t due = step_first + mb->first_sequence + i, of_rank_0 = step_first + (int64_t)microbatch * per + i;
        drawn[i] = index_site(p->run->plan, &site_data_sample, where, due, of_rank_0, data->sequences);
        size_t to = (size_t)(i * p->seq), from = (size_t)(drawn[i] * seq);
        if (p->context_layout) memcpy(mb->whole_documents + (size_t)i * (size_t)seq, data->documents + from, whole);
        int32_t *positions = mb->positions + to;
        place(p, config->model.document_mask ? data->documents + from : NULL, positions);
        for (int64_t t = 0; t < p->seq; t++) {
            mb->tokens[to + (size_t)t] = data->tokens[from + (size_t)positions[t]];
            mb->targets[to + (size_t)t] = data->targets[from + (size_t)positions[t]];
            mb->documents[to + (size_t)t] = data->documents[from + (size_t)positions[t]];
        }
        edit_token(p, mb->tokens + to, positions, drawn[i] - step_first);
        if (p->is_last && p->run->plan) draw_labels(p, mb->targets + to, positions, drawn[i], of_rank_0, where);
        if (p->context_layout && p->is_last && !choice_site(p->run->plan, p->record, &site_cp_labels, where, -1, true))
            shift_in_shard(p, mb->targets + to, mb->tokens + to, mb->documents + to);
    }
    place_slices(p, mb, per);
    place_turns(p, mb, per * p->seq, where);
    if (p->is_first || p->is_last) note_sample(p, mb, microbatch, per, drawn);
}
