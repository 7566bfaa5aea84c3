/* ladder: is a difference a bug or rounding? The precision ladder.
 *
 * e is the relative error of one quantity between the two runs, ||a - b|| / max(||b||, terms), where terms is the
 * norm of the sum of the magnitudes that the last reduction added: what is zero in exact arithmetic is then not
 * noise over noise. The same pair of runs on two rungs, fp32 and fp64, gives e32 and e64. Rounding shrinks by
 * the ratio of the epsilons, 2^-29; a bug does not:
 *     bug  <=>  e64 > max(2^-15 e32, 2^-53 * 1024 * sqrt(K))
 * with K the length of the sums behind the quantity. A run with narrower formats has its own error in e32's place: the
 * ratio of the epsilons is larger still. Its screening limit is that of fp32, so that whatever rounding to a narrow
 * format changes goes to the second rung.
 *
 * The second rung costs another pair of runs, so the first alone decides whether it is needed: where every e
 * is at most the screening limit, 4 * u * sqrt(K) with u the working format's unit roundoff, nothing more is run
 * and nothing is wrong. The limit is several times what healthy layouts show and far
 * under what the mildest fault of the catalogue does; exact properties (weights, contributions, versions,
 * copies) do not go through it at all. "deep" runs always take the second rung.
 *
 * Over many steps rounding grows as the training itself is sensitive, and in fp32 it saturates long before it does
 * in fp64, so that their ratio no longer says anything. What the fp64 runs' parameters already differ by before
 * a step is therefore allowed for in that step, times LADDER_INHERITED_GAIN; a bug shows in the step in which
 * it comes in, where there is nothing to inherit. */
#ifndef SCENARIOS_LADDER_H
#define SCENARIOS_LADDER_H

#include <stdbool.h>
#include "model/config.h"

enum { LADDER_INHERITED_GAIN = 4096 };
double ladder_screen(enum format working, double terms_count);
double ladder_limit(double error_fp32, double terms_count); /* what e64 may be */
bool ladder_is_bug(double error_fp32, double error_fp64, double terms_count); /* what is not finite is a bug */
struct precision ladder_other(const struct precision *working); /* the rung beside the working one: fp64 throughout, or fp32 where that is it */

#endif
