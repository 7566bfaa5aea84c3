/* context_checks: what checks that other workloads have too look at in the workload `attention`; one file each. */
#ifndef SCENARIOS_CONTEXT_CHECKS_H
#define SCENARIOS_CONTEXT_CHECKS_H

#include "scenarios/check.h"
#include "scenarios/context_inference.h"

static inline bool check_is_attention(const struct evidence *e) { return e->config->workload == WORKLOAD_ATTENTION; }

void denoise_oracle(const struct evidence *e, struct check_output *output);      /* experiment_denoise.c */
void context_oracle(const struct evidence *e, struct check_output *output);      /* context_oracle.c */
void context_influence(const struct evidence *e, struct check_output *output);   /* context_influence.c */
void context_calls(const struct evidence *e, struct check_output *output);       /* context_calls.c: communication-count */
void context_shard_cover(const struct evidence *e, struct check_output *output);      /* context_shards.c: shard-cover */
void context_row_identity(const struct evidence *e, struct check_output *output);        /* context_shards.c: row-identity */
void context_poison(const struct evidence *e, struct check_output *output);      /* context_oracle.c */

/* Step 0 of a rank: where all of it is. */
struct place context_place(const struct evidence *e, int rank);
/* What outputs say: of the forward where that is wrong, else of gradients. Where several places look alike from outside (what is seen
 * is not what the mask says; blocks weigh wrongly; gradients are mixed), the ranks' own notes of decisions that fell out otherwise
 * than they always do (choices.h) say which. */
struct context_inference context_infer_of(const struct evidence *e);
/* The first place of context parallelism, in the forward or in the backward, where a rank noted that a decision fell out otherwise than it always does; NULL: none. */
const struct site *context_chosen_site(const struct record *record, bool backward);

/* context_refine.c: another word and site where the run's other facts say more than its outputs. */
void context_refine(const struct evidence *e, const struct context_comparison *which, struct context_inference *inference);
/* context_calls.c: a site that moves another format than is due; NULL: none. */
const struct site *context_wrong_format(const struct evidence *e);
/* Do forwards lack blocks, by their ledgers, that their backwards have? */
bool consumption_lost_in_merge(const struct record *record);

#endif
