/* format: number formats by rounding. Values are stored as fp32 or fp64; a narrower format is the
 * set of values that a store rounds to (round to nearest, ties to even, gradual underflow, overflow
 * to infinity as IEEE 754 does).
 * The two of eight bits are those of the OCP 8-bit floating point specification (OFP8, revision 1.0, 2023), and
 * neither saturates: fp8_e5m2 has infinities and overflows to them; fp8_e4m3 has none, and what rounds past
 * 448, an infinity too, becomes NaN (as PyTorch's casts to float8_e4m3fn do; who wants to saturate clamps
 * first). */
#ifndef SIM_FORMAT_H
#define SIM_FORMAT_H

#include <stdbool.h>
#include <stddef.h>

enum format { FORMAT_FP64, FORMAT_FP32, FORMAT_BF16, FORMAT_FP16, FORMAT_FP8_E4M3, FORMAT_FP8_E5M2, FORMAT_COUNT };

struct format_traits {
    const char *name;
    int bytes;               /* on the wire and in a real machine's memory */
    int significand_bits;    /* with the hidden one: 53, 24, 8, 11, 4, 3 */
    int exponent_min, exponent_max;
    double unit_roundoff;    /* 2^-significand_bits */
    enum format storage;     /* FORMAT_FP64 or FORMAT_FP32 */
    double largest;          /* finite value */
    bool infinite;           /* has infinities; without them overflow is NaN */
};
extern const struct format_traits format_traits[FORMAT_COUNT];

bool format_parse(const char *name, enum format *ret_format);
double format_round(enum format format, double value);
/* Round count stored values in place; a no-op where format is its own storage. */
void format_round_array(enum format format, void *data, size_t count);
static inline size_t format_storage_bytes(enum format format) { return format == FORMAT_FP64 ? 8 : 4; }
/* Read and write element i of an array stored as `storage` (fp32 or fp64). */
double format_get(const void *data, size_t i, enum format storage);
void format_set(void *data, size_t i, enum format storage, double value);

#endif
