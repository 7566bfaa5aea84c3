/* routing_due: what a router's numbers must be, made anew from those that go before them (model/routing.h), and the words
 * and places that the checks of it share. Written from the definitions, not from the program. */
#ifndef SCENARIOS_ROUTING_DUE_H
#define SCENARIOS_ROUTING_DUE_H

#include "scenarios/check.h"

/* Every routing fact of the parallel run in the order of steps, ranks and program; padding [tokens]: from the data. */
typedef void routing_visit(const struct evidence *e, struct check_output *output, const struct rank_record *rank, const struct routing_fact *fact,
                           const bool *padding);
void routing_each(const struct evidence *e, struct check_output *output, routing_visit *visit);
/* The same of whole micro-batches: with sequence or context parallelism the facts of all slices put together, in the order of sequences, on the
 * first of their ranks, where all are noted whole: tokens, cells, logits, scores, choices, room, weights, and the sums of auxiliary losses. */
void routing_each_whole(const struct evidence *e, struct check_output *output, routing_visit *visit);
/* Which of its run's tokens, counted over the step, a fact's token is. */
int64_t routing_token(const struct record *record, const struct rank_record *rank, const struct routing_fact *fact, int64_t token);
/* Which of its step's sequences it is in. */
int64_t routing_sequence(const struct record *record, const struct rank_record *rank, const struct routing_fact *fact, int64_t token);

/* Is there anything noted of tokens? There may be routers, and not a fact that had room in the record. */
bool routing_is_noted(const struct record *record);

/* A finding at a layer; `what` completes "in step S on rank R, layer L, micro-batch M: ". */
void routing_find(const struct evidence *e, struct check_output *output, const struct site *site, const struct rank_record *rank,
                  const struct routing_fact *fact, const char *pattern, double expected, double got, const char *format, ...)
    __attribute__((format(printf, 9, 10)));

/* How far numbers made in another way may lie apart, relative. */
double routing_roundoff(const struct record *record);
bool routing_agree(double a, double b, double relative);

double routing_score(const struct moe_config *moe, const double *logits, int e);
/* The score plus bias; ret [experts]; outside of the best groups -infinity. */
void routing_keys(const struct moe_config *moe, const struct routing_fact *fact, int64_t token, double *ret);
/* The k largest, ties to the lower. */
void routing_top(const double *keys, int count, int k, int32_t *ret);

/* How weights of a token's choices are made. */
struct weighing { bool biased, over_tokens, before_drop; };
/* Of pair i, routed_scaling included. */
double routing_weight(const struct moe_config *moe, const struct routing_fact *fact, int64_t i, struct weighing how);

/* The balancing loss of a cell; padding [tokens]. */
struct balancing { bool other_score, after_drop; };
double routing_balancing(const struct moe_config *moe, const struct routing_fact *fact, int cell, const bool *padding, struct balancing how);
double routing_z(const struct moe_config *moe, const struct routing_fact *fact, int cell, const bool *padding);

/* Which pairs find room; ret [tokens * top_k]. */
void routing_kept(const struct moe_config *moe, const struct routing_fact *fact, enum moe_drop policy, bool *ret);
/* The same where experts kept all first choices before all second ones: no policy has that. */
void routing_kept_by_choice(const struct moe_config *moe, const struct routing_fact *fact, bool *ret);
int64_t routing_capacity(const struct moe_config *moe, const struct routing_fact *fact, int cell);

#endif
