/* stage_loss: what each token's loss weighs in the backward, and what is printed of it.
 *
 * S = sum of the valid tokens' losses; backward is called on S * seed,
 *     seed = compensation * scale * repeats / denominator,
 * as train.loss_normalization has it (model/loss_convention.h). token_mean: denominator = valid tokens of the
 * whole step over all data ranks, scale = 1, compensation = data ranks where the gradient reduction averages
 * (which divides by them again), else 1; repeats = 1: tensor-parallel ranks hold one loss together. So every valid token
 * weighs 1/N in every gradient, however the batch is cut. A micro-batch that holds several of the cut (the standalone run) weighs each sequence as due in its own. */
#include "model/loss_convention.h"
#include "model/program.h"

/* The letters of the cut's micro-batch that this sequence of mb is due in: this micro-batch itself, with the counts that
 * the run made, or, in a run over another cut, what the data say. */
static struct factor_numbers loss_numbers(const struct program *p, const struct microbatch *mb, int sequence)
{
    const struct run_config *config = p->run->config;
    struct loss_cut cut = loss_cut_of(config);
    if (cut.data_ranks == layout_data_ranks(&config->layout) && cut.microbatches == config->layout.microbatches) return p->numbers;
    struct factor_numbers numbers = loss_numbers_due(p->run->record, p->step, loss_cut_cell(config, mb->first_sequence + sequence));
    numbers.N = p->numbers.N;
    return numbers;
}

/* Weights of a micro-batch's tokens: seed, for each sequence times what is due for it over what is for the first.
 * summed[i]: the running sum of their losses before sequence i, as it was kept, from which the print is made. */
static void weigh_tokens(struct program *p, struct microbatch *mb, struct loss_fact *fact, const double *summed, const struct factor_numbers *first)
{
    const struct run_config *config = p->run->config;
    const struct loss_convention *convention = loss_convention_of(config);
    int per = layout_sequences_per_microbatch(config), seq = config->model.seq;
    double *weights = arena_alloc(p->record->arena, (size_t)fact->token_count * sizeof *weights), reported = 0;
    double seed = loss_seed(convention, first), logged = loss_value(convention->logged, first);
    for (int i = 0; i < per; i++) {
        struct factor_numbers own = loss_numbers(p, mb, i);
        double weight = fact->seed * (loss_seed(convention, &own) / seed), sum = 0;
        for (int64_t t = (int64_t)i * seq; t < (int64_t)(i + 1) * seq; t++) {
            format_set(mb->token_weight.data, (size_t)t, p->run->ops->storage, mb->targets[t] == TARGET_IGNORED ? 0 : weight);
            weights[t] = format_get(mb->token_weight.data, (size_t)t, p->run->ops->storage);
            sum += fact->token_loss[t];
        }
        fact->backward_loss += sum * weight;
        reported += (summed[i + 1] - summed[i]) * fact->logged * (loss_value(convention->logged, &own) / logged);
    }
    fact->token_weight = weights;
    p->report += reported;
}

void stage_note_loss(struct program *p, int microbatch, struct microbatch *mb)
{
    const struct run_config *config = p->run->config;
    const struct loss_convention *convention = loss_convention_of(config);
    int64_t rows = (int64_t)layout_sequences_per_microbatch(config) * config->model.seq;
    struct loss_fact fact = {.step = p->step, .microbatch = microbatch, .positions = rows, .token_count = rows};
    double *losses = arena_alloc(p->record->arena, (size_t)rows * sizeof *losses);
    double *summed = arena_zalloc(mb->arena, (size_t)(rows / config->model.seq + 1) * sizeof *summed);
    for (int64_t t = 0; t < rows; t++) {
        losses[t] = format_get(mb->token_loss.data, (size_t)t, mb->token_loss.storage);
        fact.loss_sum += losses[t];
        if (p->run->plan) tensor_site(p->run->plan, &site_loss_sum, program_where(p, microbatch, -1), tensor_1d(&fact.loss_sum, FORMAT_FP64, 1));
        summed[t / config->model.seq + 1] = fact.loss_sum;
        fact.valid += mb->targets[t] != TARGET_IGNORED;
        fact.unshifted += mb->documents[t] != DOCUMENT_PADDING;
    }
    fact.token_loss = losses;
    p->numbers.n = (double)fact.valid;
    struct factor_numbers first = loss_numbers(p, mb, 0);
    struct where where = program_where(p, microbatch, unit_count(&config->model) - 1);
    double denominator = loss_value(convention->denominator, &first), logged = loss_value(convention->logged, &first);
    fact.denominator = factor_site(p->run->plan, &site_loss_denominator, where, denominator, &p->numbers);
    fact.scale = factor_site(p->run->plan, &site_pp_loss_scale, where, loss_value(convention->scale, &first), &p->numbers);
    fact.compensation = factor_site(p->run->plan, &site_dp_loss_scale, where, loss_compensation(convention, &first), &p->numbers);
    fact.repeats = factor_site(p->run->plan, &site_tp_loss_repeats, where, 1, &p->numbers);
    fact.seed = fact.denominator > 0 ? fact.compensation * fact.scale * fact.repeats / fact.denominator : 0;
    if (!convention->logs_counts) logged = fact.denominator > 0 ? logged * (denominator / fact.denominator) : 0;
    fact.logged = factor_site(p->run->plan, &site_loss_report, where, logged, &p->numbers);
    mb->seed = fact.seed;
    mb->token_weight = tensor_1d(arena_alloc(mb->arena, (size_t)rows * format_storage_bytes(p->run->ops->storage)), p->run->ops->storage, rows);
    weigh_tokens(p, mb, &fact, summed, &first);
    record_push(p->record, losses, fact);
    struct factor_fact factors[2] = {{&site_loss_denominator, p->step, microbatch, -1, fact.denominator, p->step, 0},
                                     {&site_pp_loss_scale, p->step, microbatch, -1, fact.scale, p->step, 0}};
    for (int i = 0; i < 2; i++) record_push(p->record, factors, factors[i]);
}
