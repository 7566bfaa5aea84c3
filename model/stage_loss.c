/* stage_loss: what each token's loss weighs in the backward, and what is printed of it.
 *
 * S = sum of the valid tokens' losses; backward is called on S * seed,
 *     seed = compensation * scale * repeats / denominator,
 * as train.loss_normalization has it (model/loss_convention.h). token_mean: denominator = valid tokens of the
 * whole step over all data ranks, scale = 1, compensation = data ranks where the gradient reduction averages
 * (which divides by them again), else 1; repeats = 1: tensor-parallel ranks hold one loss together. So every valid token
 * weighs 1/N in every gradient, however the batch is cut. With context parallelism a cp rank calls backward on its own tokens'
 * losses, a part of the sum over its sequences, as if they were a data rank's of its own. A micro-batch that holds several of the
 * cut (the standalone run) weighs each sequence, and each cp rank's positions of it, as due in its own. */
#include "model/loss_convention.h"
#include "model/program.h"

/* The letters of the cut's micro-batch that this sequence of mb is due in, and member of cp: this micro-batch itself, with the
 * counts that the run made, or, in a run over another cut, what the data say. */
static struct factor_numbers loss_numbers(const struct program *p, const struct microbatch *mb, int sequence, int member)
{
    const struct run_config *config = p->run->config;
    struct loss_cut cut = loss_cut_of(config);
    if (cut.data_ranks == layout_data_ranks(&config->layout) && cut.microbatches == config->layout.microbatches) return p->numbers;
    struct factor_numbers numbers = loss_numbers_due(p->run->record, p->step, loss_cut_cell_of(config, mb->first_sequence + sequence, member));
    numbers.N = p->numbers.N;
    return numbers;
}

/* The members of the cut's cp whose tokens are here: this rank itself, or, where sequences are whole, all. */
struct members_here { int first, count; const uint16_t *of_token /* of the micro-batch's tokens; NULL: there is one */; };

static struct members_here members_here(const struct program *p, const struct microbatch *mb)
{
    const struct run_config *config = p->run->config;
    struct loss_cut cut = loss_cut_of(config);
    if (p->context_layout || loss_cut_cp(&cut) == 1) return (struct members_here){p->record->cp, 1, NULL};
    int64_t first = (int64_t)p->step * config->train.global_batch + mb->first_sequence;
    return (struct members_here){0, cut.cp, p->run->record->members + first * config->model.seq};
}

/* One sequence's: seed times what is due for it over what is for the first. before, after: the running sum of the losses, as it
 * was kept, from which the print is made. Of several members' tokens each member's are added up apart. */
static double weigh_sequence(struct program *p, struct microbatch *mb, struct loss_fact *fact, double *weights, int sequence, int member,
                             const uint16_t *of_token, double kept_sum, const struct factor_numbers *first)
{
    const struct loss_convention *convention = loss_convention_of(p->run->config);
    double seed = loss_seed(convention, first), logged = loss_value(convention->logged, first);
    struct factor_numbers own = loss_numbers(p, mb, sequence, member);
    double weight = fact->seed * (loss_seed(convention, &own) / seed), sum = 0;
    for (int64_t t = sequence * p->seq; t < (sequence + 1) * p->seq; t++) {
        if (of_token && of_token[t] != member) continue;
        format_set(mb->token_weight.data, (size_t)t, p->run->ops->storage, mb->targets[t] == TARGET_IGNORED ? 0 : weight);
        weights[t] = format_get(mb->token_weight.data, (size_t)t, p->run->ops->storage);
        sum += fact->token_loss[t];
    }
    fact->backward_loss += sum * weight;
    return (of_token ? sum : kept_sum) * fact->logged * (loss_value(convention->logged, &own) / logged);
}

static void weigh_tokens(struct program *p, struct microbatch *mb, struct loss_fact *fact, const double *summed, const struct factor_numbers *first)
{
    int per = layout_sequences_per_microbatch(p->run->config);
    double *weights = arena_alloc(p->record->arena, (size_t)(fact->token_count + 1) * sizeof *weights), reported = 0;
    struct members_here here = members_here(p, mb);
    for (int i = 0; i < per; i++) {
        for (int c = here.first; c < here.first + here.count; c++)
            reported += weigh_sequence(p, mb, fact, weights, i, c, here.of_token, summed[i + 1] - summed[i], first);
    }
    fact->token_weight = weights;
    p->report += reported;
}

void stage_note_loss(struct program *p, int microbatch, struct microbatch *mb)
{
    const struct run_config *config = p->run->config;
    const struct loss_convention *convention = loss_convention_of(config);
    int64_t rows = (int64_t)layout_sequences_per_microbatch(config) * p->seq;
    struct loss_fact fact = {.step = p->step, .microbatch = microbatch, .positions = rows, .token_count = rows, .token_positions = program_facts_positions(p, mb->positions)};
    double *losses = arena_alloc(p->record->arena, (size_t)(rows + 1) * sizeof *losses);
    double *summed = arena_zalloc(mb->arena, (size_t)(layout_sequences_per_microbatch(config) + 1) * sizeof *summed);
    for (int64_t t = 0; t < rows; t++) {
        losses[t] = format_get(mb->token_loss.data, (size_t)t, mb->token_loss.storage);
        fact.loss_sum += losses[t];
        if (p->run->plan) tensor_site(p->run->plan, &site_loss_sum, program_where(p, microbatch, -1), tensor_1d(&fact.loss_sum, FORMAT_FP64, 1));
        summed[t / p->seq + 1] = fact.loss_sum;
        fact.valid += mb->targets[t] != TARGET_IGNORED;
        fact.unshifted += mb->documents[t] != DOCUMENT_PADDING;
    }
    fact.token_loss = losses;
    p->numbers.n = (double)fact.valid;
    struct factor_numbers first = loss_numbers(p, mb, 0, p->record->cp);
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
