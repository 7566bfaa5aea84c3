/* ledger: what went into a buffer (origin ledger) and how much each part weighs in it (scale ledger).
 *
 * A term says "the contribution of data rank `rank`, micro-batch `microbatch`, step `step`, use
 * `part` is in here `times` times, each weighing `scale`". Parameters use terms too: step = the
 * version (step whose weights these are), rank = the shard.
 * Ledgers are opaque to faults: they move only in the call that moves the numbers (copy, add, scale),
 * so a deviation changes them exactly as it changes the data. tag_sum is the 64-bit sum of one random
 * tag a term, times its multiplicity: equal multisets have equal sums. */
#ifndef SIM_LEDGER_H
#define SIM_LEDGER_H

#include <stdint.h>
#include "sim/arena.h"

struct origin { int32_t step, rank, microbatch, part; };
struct ledger_term { struct origin origin; int32_t times; double scale; };

struct ledger {
    uint64_t tag_sum;
    int count, capacity;
    struct ledger_term *terms;  /* sorted by origin (step, rank, microbatch, part); grown with malloc */
};

void ledger_init(struct ledger *ledger);
void ledger_done(struct ledger *ledger);                                  /* frees the terms */
void ledger_clear(struct ledger *ledger);                                 /* empty, keeps capacity */
void ledger_add_term(struct ledger *ledger, struct origin origin, int32_t times, double scale);
void ledger_add(struct ledger *to, const struct ledger *from);            /* reduce: multiplicities add, scale is the mean by multiplicity */
void ledger_copy(struct ledger *to, const struct ledger *from);
void ledger_scale(struct ledger *ledger, double factor);
const struct ledger_term *ledger_find(const struct ledger *ledger, struct origin origin); /* NULL if absent */
uint64_t ledger_tag(struct origin origin);
int origin_compare(struct origin a, struct origin b);

#endif
