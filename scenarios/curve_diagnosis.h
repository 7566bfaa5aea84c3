/* curve_diagnosis: from two loss curves alone, which faults of the catalogue would make them.
 *
 * The user has a parallel and a standalone curve of some framework, and a scenario with the same layout. Every fault of
 * the catalogue is a candidate; each is run in that layout, one run a fault, healthy standalone and parallel runs beside
 * them. Where two faults arm the very same deviation, one run serves both. Which fault made the curves is not known here:
 * the scenario's own faults are never read (it must have been loaded without them).
 *
 * WHAT IS COMPARED. In each channel (printed loss; loss that backward gets, where the file tells it apart; gradient
 * norm) and step, the relative difference D = parallel / standalone - 1, of the curves and of each simulation. So the
 * size of the user's losses does not matter. A curve of the form step,loss may show what is printed or what backward
 * gets: both readings are tried, the second at 0.98 of its score.
 *
 * NOISE. Differences below f are none. f is at least
 *     base = digits + 16 * |D of the healthy simulation| + 64 * unit roundoff of the storage
 * and --noise if given; else, where the standalone curve is not the simulated one (within 1e-4 and its digits, at every step), at least
 *     3 * median |D(i-1) - 2 D(i) + D(i+1)| / (0.6745 * sqrt(6))
 * over the whole curve from 5 lines on: the standard deviation of white noise, by second differences, which a smooth
 * drift leaves small. A difference that itself jumps from step to step makes that too large, so candidates that jump less
 * than it are then not told apart.
 *
 * SCORE. gap = max(0, |D - d| - f), size = max(|D|, |d|):
 *     agreement = (1 / (1 + gap / (0.02 size + f)) + 1 - gap / (|D| + |d| + f)) / 2
 * The first step, where nothing but the cause itself can differ, counts as much as all later ones together. The score is
 * the mean over channels, from 0 to 1, halved for each channel whose ratio at the first step the cause can't make: where
 * that is a formula in M, D, P, T, the simulated one is off by more than 10 %; else the difference is above 0.5 and the
 * simulated one off by half of the larger.
 *     Where the standalone curve is another model's, each fault is run at CURVE_SEEDS_MORE other seeds too. What is a formula
 * of the layout is the same in all; what only disturbs numbers has another size and sign in each. With mean m and standard
 * deviation s of the d, and least = r max(|D|, |m|) + f, r = 0.01 at the first step, 0.05 later,
 *     h^2 = least^2 + s^2,   z = max(0, |D - m| - f) / h,   q = (least / h) (1 + z^2 / 3)^-2
 * which is Student's density (of 4 runs) over the largest that any cause could have: a cause that makes D again and again
 * is in front of one that might make anything. The score is 1 / (1 - mean(ln q) / 4), the first step counting twice as
 * much as all later ones together and the mean going over channels, each ln q at least -20; halved as above where the ratio is a formula.
 * Below 0.35, or within 0.02 of the score of "nothing is wrong", a curve is not explained.
 *
 * CLASSES. Candidates whose own simulated differences agree within f in every channel given cannot be told apart by these
 * curves: they form one class, ordered by the nearest digits. separate_by lists what would tell a candidate from the
 * others in front: observations in which the simulated runs differ (curve_trace.h), and changes of the layout after which
 * they differ (curve_separate.c). Nothing of it stands in a table.
 *
 * LIMITS: CURVE_STEPS_MAX steps are simulated. One fault at a time, at the catalogue's own place. A fault that stops the run
 * has no curve and is left out. */
#ifndef SCENARIOS_CURVE_DIAGNOSIS_H
#define SCENARIOS_CURVE_DIAGNOSIS_H

#include "scenarios/curve_trace.h"

enum { CURVE_STEPS_MAX = 12, CURVE_SEEDS_MORE = 3, CURVE_SEPARATE_MAX = 6, CURVE_NOTES_MAX = 8 };

struct curve_options {
    struct train_options train;
    double noise;                                   /* relative; NAN: estimated */
    const struct scenario_options *wanted;          /* as the scenario was loaded, so that it can be loaded changed */
    void (*progress)(void *context, int done, int total, const char *what); void *progress_context; /* may be NULL */
};

enum curve_verdict { CURVE_EXPLAINED, CURVE_UNEXPLAINED, CURVE_NOT_VISIBLE };
extern const char *const curve_verdict_names[];

struct curve_candidate {
    const struct fault *fault;
    const struct curve_trace *trace, *more[CURVE_SEEDS_MORE]; /* at other seeds; NULL: not run, or no curve */
    double score, distance;             /* distance: sum of |D - d|, to order a class by */
    bool reads_backward;                /* the loss column taken for what backward gets */
    int class;                          /* from 1 on, best first */
    char why[640];
    int separate_count; const char *separate_by[CURVE_SEPARATE_MAX];
    int alike_count; const struct fault **alike; /* of those in front, what nothing simulated tells from it */
};

struct curve_diagnosis {
    enum curve_verdict verdict;
    bool same_model;                    /* the standalone curve is the simulated one */
    int steps;                          /* simulated */
    int points; const int *point;       /* lines of the curves that are compared, by index */
    const int *step;                    /* [points]: the step of the simulation each belongs to */
    bool given[CURVE_CHANNELS];
    double *difference[CURVE_CHANNELS]; /* [points]: D; NULL: not given */
    double *floor[CURVE_CHANNELS];      /* [points]: f */
    char ratio[CURVE_CHANNELS][48];     /* at the first step as a formula in M, D, P, ...; "" if none */
    double noise;                       /* the largest f */
    const char *noise_from;             /* "--noise", "digits and rounding", "scatter of the curves" */
    double healthy_score;               /* of "nothing is wrong" */
    int simulated, stopped, not_hit;    /* faults */
    int candidates_count; struct curve_candidate *candidates; /* best first */
    int notes_count; char notes[CURVE_NOTES_MAX][320];
    struct arena *arena;
};

/* NULL and an error; NULL and ERROR_NONE: interrupted. Caller owns (curve_diagnosis_free). */
struct curve_diagnosis *curve_diagnose(const struct scenario *scenario, const struct curve *parallel, const struct curve *standalone,
                                       const struct curve_options *options, struct error *error);
void curve_diagnosis_free(struct curve_diagnosis *diagnosis); /* accepts NULL */

/* ---- parts of it, by file ---- */
struct curve_runs { struct curve_setting setting; struct curve_trace standalone, healthy; int more_count; struct curve_runs *more; /* [more_count]: at other seeds */ };
/* curve_score.c: noise, ratios, scores, classes; candidates have their traces. */
void curve_measure(struct curve_diagnosis *d, const struct curve_runs *runs, const struct curve *parallel, const struct curve *standalone, double noise);
void curve_rank(struct curve_diagnosis *d, const struct curve_runs *runs);
/* D of a simulated run; of one at another seed with that seed's runs. */
double curve_simulated(const struct curve_runs *runs, const struct curve_trace *trace, enum curve_channel channel, int step);
/* curve_separate.c: fills separate_by and alike. False: an error, or interrupted. */
bool curve_separate(struct curve_diagnosis *d, const struct curve_runs *runs, const struct curve_options *options, struct error *error);
void curve_note(struct curve_diagnosis *d, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
