/* train: runs one training job on virtual ranks and records what it did. The parallel run and its
 * standalone reference are the same program with another layout. */
#ifndef MODEL_TRAIN_H
#define MODEL_TRAIN_H

#include "model/record.h"
#include "sim/site.h"

/* Initial values of every parameter, whole, in one storage: by seed and name, or from model.weights. */
struct initial;
struct initial *initial_new(const struct run_config *config, struct error *error); /* caller owns; NULL and an error */
void *const *initial_values(const struct initial *initial);                         /* in the order of param_table_new */
void initial_free(struct initial *initial);                                          /* accepts NULL */

/* Does one of the patterns of train.frozen cover this parameter? */
bool train_is_frozen(const struct train_config *train, const char *name);

/* In step 0, the token at `position` of that sequence of the step becomes (token + by) mod vocab; no target does. */
struct token_edit { int64_t sequence; int position, by; };
/* Does the optimizer leave this parameter alone since nothing uses it? */
static inline bool train_leaves_alone(const struct run_config *config, const struct param_info *info)
{
    return info->is_adapter && config->model.adapter_used == ADAPTER_NEVER && config->train.no_gradient == NO_GRADIENT_SKIP;
}

struct train_options {
    const struct initial *initial;         /* of this seed, model and format, to share between runs; NULL: the run makes its own */
    int threads;
    uint64_t interleave;
    const char *cpu_path, *gemm;           /* NULL: best, "fixed" */
    const char *coroutine;                 /* how ranks switch (sim/coroutine.h); NULL: the default */
    bool trace;
    bool watch;                            /* note what collectives were given and gave, and writes to buffers under way: a few passes over every gradient */
    bool mute;                             /* decisions of the split attention are not noted (model/context/job.h): what is told without them */
    bool look;                             /* note what passes the sites inside layers, a row at a time (rows_fact) */
    bool keep;                             /* with look: at the end of each layer the values too */
    const struct token_edit *edit;         /* NULL: none */
    const bool *left_out;                  /* [steps]: loss scaling leaves exactly these updates out; NULL: it decides */
    const struct routing_choices *follow;  /* routers take over these choices in near ties; NULL: none. Of a run on one rank alone */
    volatile int *stop;                    /* may be NULL */
    /* Called on the loop's thread between rounds now and then; may be NULL. done of total in micro-batch actions. */
    void (*progress)(void *context, int64_t done, int64_t total); void *progress_context;
};

/* For the other workloads, which make records of the same kind. The clocks are for `performance` alone. */
struct run_clock { double wall_s, cpu_s; };
struct run_clock run_clock_now(void);
double train_message_cost_s(void *machine_config, int source, int destination, size_t bytes);
void train_copy_deadlock(struct record *record, const struct deadlock *from);

/* Caller owns the record (record_free). NULL and an error only for the environment's or hpsim's own reasons;
 * a deadlock or wrong numbers are a record. plan: the armed deviations, or NULL. */
struct record *train_run(const struct run_config *config, struct site_plan *plan, const struct train_options *options, struct error *error);

#endif
