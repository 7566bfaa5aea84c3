/* stage_draw: the tokens, targets and documents of a micro-batch. */
#include "model/program.h"
#include "sim/hash.h"

/* Each position's target: due is its own of the data. */
static void draw_labels(struct program *p, int32_t *targets, int64_t sequence, int64_t of_rank_0, struct where where)
{
    const struct data *data = &p->run->data;
    int64_t seq = data->seq, count = data->sequences * seq;
    for (int64_t t = 0; t < seq; t++)
        targets[t] = data->targets[index_site(p->run->plan, &site_labels, where, sequence * seq + t, of_rank_0 * seq + t, count)];
}

/* A token that a run reads in another's place; targets stay. */
static void edit_token(const struct program *p, int32_t *tokens, int64_t sequence)
{
    const struct token_edit *edit = p->run->options->edit;
    if (!edit || edit->sequence != sequence || p->step != 0) return;
    tokens[edit->position] = (int32_t)((tokens[edit->position] + edit->by) % p->run->config->model.vocab);
}

/* The sequences of a micro-batch: due are (data rank * M + micro-batch) * b + i of the step. */
void stage_draw(struct program *p, int microbatch)
{
    const struct run_config *config = p->run->config;
    const struct data *data = &p->run->data;
    struct microbatch *mb = stage_open(p, microbatch);
    int per = layout_sequences_per_microbatch(config), seq = config->model.seq, m_count = config->layout.microbatches;
    size_t bytes = (size_t)(per * seq) * sizeof(int32_t);
    int64_t *drawn = arena_alloc(p->record->arena, (size_t)per * sizeof *drawn);
    mb->tokens = arena_alloc(mb->arena, bytes);
    mb->targets = arena_alloc(mb->arena, bytes);
    mb->documents = arena_alloc(mb->arena, bytes);
    mb->positions = arena_alloc(mb->arena, bytes);
    mb->first_sequence = (int64_t)(p->data_rank * m_count + microbatch) * per;
    struct where where = program_where(p, microbatch, -1);
    for (int i = 0; i < per; i++) {
        int64_t step_first = (int64_t)p->step * config->train.global_batch;
        int64_t due = step_first + mb->first_sequence + i, of_rank_0 = step_first + (int64_t)microbatch * per + i;
        drawn[i] = index_site(p->run->plan, &site_data_sample, where, due, of_rank_0, data->sequences);
        size_t to = (size_t)(i * seq), from = (size_t)(drawn[i] * seq), row = (size_t)seq * sizeof(int32_t);
        memcpy(mb->tokens + to, data->tokens + from, row);
        edit_token(p, mb->tokens + to, drawn[i] - step_first);
        memcpy(mb->targets + to, data->targets + from, row);
        if (p->is_last && p->run->plan) draw_labels(p, mb->targets + to, drawn[i], of_rank_0, where);
        memcpy(mb->documents + to, data->documents + from, row);
        for (int t = 0; t < seq; t++) mb->positions[to + (size_t)t] = t;
    }
    if (!p->is_first && !p->is_last) return;
    struct sample_fact fact = {.step = p->step, .microbatch = microbatch, .count = per, .sequences = drawn,
                               .first_sequence = (int)mb->first_sequence};
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
