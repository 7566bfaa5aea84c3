/* context_vary: what the passes of context_variations share. Internal to scenarios/context_vary*.c and context_variations.c. */
#ifndef SCENARIOS_CONTEXT_VARY_H
#define SCENARIOS_CONTEXT_VARY_H

#include "scenarios/context_variations.h"

#define VARY_FP64_LIMIT 1e-12

struct vary {
    struct run_config config;              /* fp64 */
    const struct attention_inputs_data *inputs;
    context_runner *run; void *context;
    const struct train_options *options;
    struct context_variations *v;
    int members, groups, chunks;
    int *holder;                           /* [sequences, seq]: member, or `members` for joint rows */
    struct error *error;
    bool stopped;
};

/* Who holds it; `members` for joint rows. */
int vary_chunk(const struct vary *w, int64_t sequence, int64_t position);
const int32_t *vary_documents(const struct attention_inputs_data *in, int64_t sequence);   /* NULL: there are none */
/* NULL: stopped or an error (w->stopped). A run that does not finish is a record all the same. */
struct record *vary_run(struct vary *w, const struct run_config *config, const struct attention_inputs_data *in);
bool vary_is_whole(const struct record *record);
bool vary_same_bits(const double *a, const double *b, size_t count);

/* Results of the reference on these inputs; `memory` is the caller's to free. */
struct vary_due { struct attention_results results; void *memory; };
struct vary_due vary_reference(struct vary *w, const struct run_config *config, const struct attention_inputs_data *in, bool gradients);

/* The passes that have a file of their own. base: forward as it is. */
void vary_influence(struct vary *w, struct influence *f, const struct record *base, bool keys);
void vary_gradients(struct vary *w);
void vary_direction(struct vary *w, const struct record *base);

#endif
