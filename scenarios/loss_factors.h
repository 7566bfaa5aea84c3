/* loss_factors: what a micro-batch's loss was multiplied by, factor by factor, each against what is due given
 * the factors before it:
 *     loss.token_count_reduce   N as the rank got it, against the sum of all data ranks' own counts
 *     loss.denominator          the denominator used, against the convention's with N as the rank got it
 *     pp.loss.scale             the scale beside it, against the convention's
 *     dp.loss.scale             what makes up for the reduction over data ranks, against what it divides by
 *     tp.loss_repeats           how often tensor-parallel ranks count the loss that they hold together, against once
 * (model/loss_convention.h), and the number that really multiplied each token's gradient, against compensation * scale *
 * repeats / denominator. */
#ifndef SCENARIOS_LOSS_FACTORS_H
#define SCENARIOS_LOSS_FACTORS_H

#include "scenarios/facts.h"
#include "scenarios/ratio.h"

enum loss_factor {
    LOSS_FACTOR_COUNT,
    LOSS_FACTOR_DENOMINATOR,
    LOSS_FACTOR_SCALE,
    LOSS_FACTOR_COMPENSATION,
    LOSS_FACTOR_REPEATS,
    LOSS_FACTOR_UNDECLARED,
    LOSS_FACTORS
};

/* What this factor makes of the weight of each of the micro-batch's tokens: 1 where it is as due. */
double loss_factor_ratio(const struct record *record, const struct rank_record *rank, const struct loss_fact *fact,
                         enum loss_factor factor);
bool loss_factor_is_due(double ratio, enum loss_factor factor, const struct record *record);
const struct site *loss_factor_site(enum loss_factor factor);

/* All of a step's micro-batches for which the factor is not as due, as one formula; one that holds for the
 * other steps too, if there is one. */
struct ratio_form loss_factor_form(const struct record *record, int step, enum loss_factor factor);

/* The ratio, the pattern and the sentence about one micro-batch, into a finding that has its place. */
void loss_factor_describe(struct finding *finding, const struct record *record, const struct loss_fact *fact,
                          enum loss_factor factor, double ratio, const struct ratio_form *form);

#endif
