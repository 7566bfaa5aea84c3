/* curve_trace: what one simulated run would have printed, step by step, and what else could have been looked at.
 *
 * Channels are those of a curve. Observations are vectors of numbers a step, by kind (curve_observations.def); two
 * causes are told apart by one where the vectors differ in length, or anywhere by more than
 *     tolerance * max(|a|, |b|, 1e-4 * the largest of both vectors),   tolerance = max(1e-3, 8 * roundoff of the precision)
 * which is far above rounding and far below what a person could not see. */
#ifndef SCENARIOS_CURVE_TRACE_H
#define SCENARIOS_CURVE_TRACE_H

#include "model/record.h"
#include "model/train.h"
#include "scenarios/curve.h"
#include "scenarios/scenario.h"

enum curve_observation {
#define OBSERVATION(identifier, what) OBSERVE_##identifier,
#include "scenarios/curve_observations.def"
#undef OBSERVATION
    OBSERVATIONS
};
extern const char *const curve_observation_names[OBSERVATIONS];

enum trace_end { TRACE_RAN, TRACE_NOT_HIT, TRACE_STOPPED /* a rank waits for ever: there is no curve */ };
struct observed { int count; double *values; };
struct curve_trace {
    enum trace_end end;
    int steps;
    uint64_t digest[2];
    double *value[CURVE_CHANNELS];      /* [steps] */
    struct observed *observed;          /* [steps * OBSERVATIONS]; NULL: not kept */
};

/* What has to be the same for all runs of one configuration. */
struct curve_setting {
    const struct scenario *scenario;    /* without faults */
    int steps;
    const struct initial *initial;
    const struct train_options *train;
    bool observe;                       /* keep the observations */
    struct arena *arena;                /* traces live there */
};
/* fault NULL: healthy. False: an error, or interrupted (no error). */
bool curve_trace(const struct curve_setting *setting, const struct fault *fault, bool standalone, struct curve_trace *ret_trace, struct error *error);
/* Would both faults do the very same thing in this layout? */
bool curve_faults_are_one(const struct curve_setting *setting, const struct fault *a, const struct fault *b);
/* The first step at which the two runs differ in this observation; -1: none. */
int curve_observation_differs(const struct curve_trace *a, const struct curve_trace *b, enum curve_observation observation, double tolerance);

#endif
