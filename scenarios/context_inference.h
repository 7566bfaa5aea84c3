/* context_inference: from what a context-parallel attention gave to what it did wrong.
 *
 * consumption_word reads integers: how often member c's keys and values are in member r's output, as the ledgers say (facts)
 * or as outputs alone show (context_inferred_times: a chunk without influence 0 times, one whose weight is n times what
 * is due beside the others n times). The words, the first that fits every wrong row of the matrix; s = (r - c) mod P is the step of
 * a ring at which r meets c's block:
 *   local-only     only the own block
 *   last-block-only  only the block that came last
 *   resent         the neighbour's block P - 1 times in the place of all others
 *   all-skipped    the same on some ranks alone, while the others got the blocks that went through these
 *   causal-skip    without the blocks of later members (s > r), though the mask does not hide them
 *   past-skipped   without those of earlier members, which a causal mask shows
 *   doubled        everything, and some of it more than once
 *   skipped-step   without the block of one step, the same for all
 *   nothing        no block at all
 *   not-arrived    only the own block, although messages were sent: what came was not what was sent
 *   missing, not-due   anything else that is not there, or should not be
 * context_infer reads the variations (scenarios/context_variations.h) and how many messages of keys and values each rank sent.
 * Where influence and masses are right by set and sum, the weights tell: as powers of the due ones, w^0 is a plain average,
 * w^log2(e) a log-sum-exp in base 2 taken for one in base e. */
#ifndef SCENARIOS_CONTEXT_INFERENCE_H
#define SCENARIOS_CONTEXT_INFERENCE_H

#include "scenarios/context_compare.h"
#include "scenarios/context_variations.h"

struct consumption_matrix { int size; const int *got, *due; /* [size * size]: row: the member whose output it is; got < 0: unknown */ };
struct context_inference {
    const char *word;                  /* NULL: nothing is wrong, or nothing can be said */
    const struct site *site;
    int step;                          /* of the ring; -1: no matter of one */
    int first_rank;                    /* the first that shows it; -1 */
    char text[480];
};

/* Which pairs of chunks have a query that sees a key, over the sequences of a group. [size * size] into ret_due. Joint rows are nobody's;
 * with `joint` they are queries of each member and keys of its own chunk, as the ledgers have it. */
void consumption_due(const struct run_config *config, const int32_t *documents /* [sequences, seq] of the group or NULL */, int64_t sequences, bool joint, int *ret_due);
/* What is not due may be there all the same where a method takes all keys: taken out of `got`. */
void consumption_forgive(const struct run_config *config, int *got, const int *due, int size);
/* Where keys and values move, by the method: cp.kv_hop, cp.kv_gather, cp.seq_to_head; their gradients: cp.dkv_hop, cp.kv_grad_scatter, cp.head_to_seq. */
const struct site *context_moves(const struct run_config *config, bool gradients);
/* messages: of keys and values, by rank; NULL: not known. */
/* usp: the same of its ring alone, where the members of a ulysses group agree; room [2 * size * size]. */
void consumption_of_ring(const struct run_config *config, struct consumption_matrix *matrix, int *room);
struct context_inference consumption_word(const struct consumption_matrix *matrix, const int64_t *messages);

/* From outputs alone; -1 where it can't be told. false: there is nothing to go by. */
bool context_inferred_times(const struct run_config *config, const struct context_variations *v, int group, int *ret_got);
struct context_inference context_infer(const struct run_config *config, const struct context_comparison *comparison, const struct context_variations *v,
                                       const int64_t *messages, const int32_t *documents, bool ledgers_are_right);
/* Of gradients, where the forward is right: which of dq, dk, dv are wrong, and where they landed. */
struct context_inference context_infer_gradients(const struct run_config *config, const struct context_comparison *comparison, const struct context_variations *v);

/* The messages of keys and values that each rank sent in the forward; -1 a rank where nobody counted. */
void context_messages(const struct record *record, int64_t *ret);
const struct site *context_site(const char *name);

#endif
