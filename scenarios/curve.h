/* curve: a loss curve as a framework printed it: CSV with one line a step.
 *
 * Read are two forms, by the names of the columns, in any order; other columns are passed over:
 *     step,loss[,grad_norm]
 *     step,loss_parallel,loss_logged,loss_standalone,grad_norm_parallel,grad_norm_standalone   (hpsim run --csv)
 * Of the second, the parallel curve takes what ends in _parallel and loss_logged, the standalone one what ends in
 * _standalone. Lines end in LF or CRLF, fields may stand in double quotes. Steps are whole numbers in ascending order. A
 * number that is not finite is refused, but a grad_norm column that is nan in every line says that there is none.
 *
 * LIMITS: 16 MiB, 64 columns, 1,000,000 steps. */
#ifndef SCENARIOS_CURVE_H
#define SCENARIOS_CURVE_H

#include <stdbool.h>
#include <stdint.h>
#include "sim/error.h"

/* printed: what the framework shows. backward: what it calls backward on, where that is told apart. */
enum curve_channel { CURVE_PRINTED, CURVE_BACKWARD, CURVE_NORM, CURVE_CHANNELS };
enum curve_side { CURVE_PARALLEL, CURVE_STANDALONE };

struct curve {
    char file[1024];
    int count;
    int64_t *step; int *line;                    /* [count] */
    double *value[CURVE_CHANNELS];               /* [count]; NULL: no such column */
    int decimals[CURVE_CHANNELS], significant[CURVE_CHANNELS]; /* most digits behind the point, most digits at all, in the column */
};

/* False and an error with file and line. Caller owns (curve_done), on failure too. */
bool curve_read(const char *path, enum curve_side side, struct curve *ret_curve, struct error *error);
void curve_done(struct curve *curve);
/* Have both the same steps? */
bool curves_match(const struct curve *parallel, const struct curve *standalone, struct error *error);
/* Half of the last printed place of a value of the column: what its digits leave open. */
double curve_resolution(const struct curve *curve, enum curve_channel channel, int i);

#endif
