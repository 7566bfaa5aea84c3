/* hash: a 128-bit digest of bytes, the same on every machine (little-endian reads).
 *
 * Not cryptographic: two independent 64-bit multiply-xor lanes. Feed values, never structs (padding)
 * and never pointers. Floating-point numbers go through hash_f64 / hash_reals, where every NaN is one
 * pattern and -0 differs from +0. */
#ifndef SIM_HASH_H
#define SIM_HASH_H

#include <stddef.h>
#include <stdint.h>
#include "sim/format.h"

struct hash { uint64_t lane[2]; uint64_t length; };

void hash_init(struct hash *hash);
void hash_bytes(struct hash *hash, const void *data, size_t bytes);
void hash_u64(struct hash *hash, uint64_t value);
void hash_f64(struct hash *hash, double value);
void hash_text(struct hash *hash, const char *text); /* with its length */
void hash_reals(struct hash *hash, const void *data, size_t count, enum format format); /* stored fp32 or fp64 */
void hash_finish(const struct hash *hash, uint64_t ret_digest[2]);
void hash_hex(const uint64_t digest[2], char ret_text[33]);

uint64_t hash_mix(uint64_t value);          /* one 64-bit finalizer (bijective) */
uint64_t hash_string(const char *text);     /* 64-bit hash of a name, for keys of random streams */

#endif
