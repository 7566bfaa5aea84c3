/* random: counter-based streams keyed by a seed and a name, so that a draw depends on nothing but
 * (seed, name, index): not on the rank, the order of ranks, or what else was drawn. */
#ifndef SIM_RANDOM_H
#define SIM_RANDOM_H

#include <stdbool.h>
#include <stdint.h>

struct random_stream { uint64_t key; uint64_t counter; };

struct random_stream random_stream(uint64_t seed, const char *name);
uint64_t random_at(const struct random_stream *stream, uint64_t index);  /* index-th draw, stateless */
uint64_t random_u64(struct random_stream *stream);
double random_unit(struct random_stream *stream);                        /* [0, 1), 53 bits */
double random_unit_at(const struct random_stream *stream, uint64_t index);
double random_normal_at(const struct random_stream *stream, uint64_t index); /* N(0,1), own log/cos/sqrt: the same bits everywhere */
uint64_t random_below(struct random_stream *stream, uint64_t bound);     /* unbiased, bound >= 1 */
void random_shuffle(struct random_stream *stream, int *items, int count);

#endif
