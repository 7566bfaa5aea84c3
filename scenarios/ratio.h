/* ratio: measured numbers written in the run's own symbols: 0.125 with M = 8 is "1/M".
 *
 * Searched are the monomials N^a N_all^b N_unshifted^c n^d n_rank^e M^f D^g P^h D_shard^i D_replicate^j T^k with exponents
 * -1, 0, 1, and their negatives; D_shard and D_replicate where the data ranks are split both ways, so that neither is D. One must fit every sample (each with its own n and n_rank) within the tolerance; of those
 * that fit, the one with the fewest letters is taken, then by the order of preference. */
#ifndef SCENARIOS_RATIO_H
#define SCENARIOS_RATIO_H

#include "model/deviations.h"

struct ratio_sample { struct factor_numbers numbers; double value; };

struct ratio_form {
    bool found;
    char text[48];           /* "N/(n*D)"; "" where nothing fits */
    /* What remains beside the pattern of a mean of means, where the text has one: "M" for "N/(n*D)". The
     * pattern is N/(n*M*D) where n occurs, N/(n_rank*D) where n_rank does. Else, and where 1 remains: text. */
    char beside_mean[48];
    double value;            /* of the first sample, as measured; of what remains where beside_mean differs from text */
};

/* prefer: the letter that wins where several single ones fit ('M', 'D', 'P' or 'T'). letters_max: how many letters a
 * form may have; the coarser the measurement, the fewer. */
struct ratio_form ratio_classify(const struct ratio_sample *samples, int count, char prefer, int letters_max,
                                 double tolerance);

#endif
