/* precision: rounding of stored numbers to the formats of a run (model/config.h, struct precision). */
#ifndef MODEL_PRECISION_H
#define MODEL_PRECISION_H

#include "model/config.h"
#include "sim/tensor.h"

/* In place; nothing where the storage is no wider than the format. */
void vector_round(void *data, size_t count, enum format storage, enum format format);
/* A dense tensor. */
void tensor_round(struct tensor values, enum format format);
/* Is it one of the eight-bit formats, to which a matrix product's operands alone are rounded? */
static inline bool format_is_fp8(enum format format) { return format_traits[format].bytes == 1; }
/* What activations between products are kept in: compute, but bf16 where that is fp8. */
static inline enum format precision_activation(const struct precision *p)
{
    return format_is_fp8(p->compute) ? FORMAT_BF16 : p->compute;
}
/* A matrix [rows, columns], each row (or column, where by_column) first multiplied by the power of two that brings
 * its largest magnitude just under the format's largest number, rounded, and divided again: row-wise scaling.
 * out and in may be one. A row of zeros or with something that is not finite stays. */
void matrix_round_scaled(struct tensor out, struct tensor in, enum format format, bool by_column);

/* Significant bits that the number of these which needs most of them needs, from its highest to its lowest one; how many
 * are neither 0 nor not finite. */
int vector_bits(const void *data, size_t count, enum format storage, int64_t *ret_values);

/* The largest of all parts' smallest numbers: what is below it may become 0, whatever its own relative roundoff. */
double precision_smallest(const struct precision *precision);

#endif
