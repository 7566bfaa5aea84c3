/* test_hash: what stored numbers have in common and what sets them apart. Every NaN is one pattern, whatever its sign,
 * payload or quiet bit; -0 and +0, the infinities and every other number differ. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sim/hash.h"
#include "tests/support/run_suite.h"

static const enum format formats[] = {FORMAT_FP32, FORMAT_FP64};

static void put_bits(void *data, size_t i, enum format format, uint64_t bits)
{
    if (format == FORMAT_FP64)
        memcpy((char *)data + 8 * i, &bits, 8);
    else
        memcpy((char *)data + 4 * i, &(uint32_t){(uint32_t)bits}, 4);
}

/* Sign, exponent all ones, and a payload: the quiet bit is the highest of the payload. */
static uint64_t special_bits(enum format format, int sign, uint64_t payload)
{
    return format == FORMAT_FP64 ? (uint64_t)sign << 63 | UINT64_C(0x7ff) << 52 | payload
                                 : (uint64_t)sign << 31 | UINT64_C(0xff) << 23 | payload;
}

static void digest(const void *data, size_t count, enum format format, uint64_t ret[2])
{
    struct hash hash;
    hash_init(&hash);
    hash_reals(&hash, data, count, format);
    hash_finish(&hash, ret);
}

static bool equal(const uint64_t a[2], const uint64_t b[2])
{
    return a[0] == b[0] && a[1] == b[1];
}

static void *ascending(size_t count, enum format format)
{
    void *data = malloc(count * format_storage_bytes(format));
    for (size_t i = 0; i < count; i++) {
        if (format == FORMAT_FP64)
            ((double *)data)[i] = 0.25 + (double)i;
        else
            ((float *)data)[i] = 0.25f + (float)i;
    }
    return data;
}

static const size_t lengths[] = {1, 2, 3, 7, 9, 255, 256, 257, 300, 515};
enum { LENGTHS = sizeof lengths / sizeof *lengths };

/* Proves: any NaN at any place hashes as any other NaN there; and that is no blindness: another place, or a number in
 * its place, hashes differently. */
START_TEST(test_hash_nans_are_one)
{
    for (int f = 0; f < 2; f++) {
        const enum format format = formats[f];
        const int payload_bits = format == FORMAT_FP64 ? 52 : 23;
        for (int l = 0; l < LENGTHS; l++) {
            for (size_t at = 0; at < lengths[l]; at += 1 + lengths[l] / 5) {
                void *data = ascending(lengths[l], format);
                uint64_t without[2], first[2], other[2];
                digest(data, lengths[l], format, without);
                put_bits(data, at, format, special_bits(format, 0, UINT64_C(1) << (payload_bits - 1)));
                digest(data, lengths[l], format, first);
                ck_assert(!equal(first, without));
                for (int sign = 0; sign < 2; sign++) {
                    for (int bit = 0; bit < payload_bits; bit++) {
                        put_bits(data, at, format, special_bits(format, sign, UINT64_C(5) << bit & ((UINT64_C(1) << payload_bits) - 1)));
                        digest(data, lengths[l], format, other);
                        ck_assert_msg(equal(first, other), "fp%d, %zu numbers, NaN at %zu, sign %d, bit %d",
                                      format == FORMAT_FP64 ? 64 : 32, lengths[l], at, sign, bit);
                    }
                }
                put_bits(data, at, format, special_bits(format, 1, 0)); /* an infinity is none */
                digest(data, lengths[l], format, other);
                ck_assert(!equal(first, other) && !equal(without, other));
                if (at + 1 < lengths[l]) {
                    free(data);
                    data = ascending(lengths[l], format);
                    put_bits(data, at + 1, format, special_bits(format, 0, 1));
                    digest(data, lengths[l], format, other);
                    ck_assert(!equal(first, other));
                }
                free(data);
            }
        }
    }
}
END_TEST

/* Proves: the two zeros differ, and so do the two infinities, alone and beside a NaN (which takes the slow path). */
START_TEST(test_hash_zeros_differ)
{
    for (int f = 0; f < 2; f++) {
        const enum format format = formats[f];
        const uint64_t sign = format == FORMAT_FP64 ? UINT64_C(1) << 63 : UINT64_C(1) << 31;
        for (int with_nan = 0; with_nan < 2; with_nan++) {
            for (int infinite = 0; infinite < 2; infinite++) {
                void *data = ascending(11, format);
                uint64_t plus[2], minus[2], bits = infinite ? special_bits(format, 0, 0) : 0;
                if (with_nan)
                    put_bits(data, 7, format, special_bits(format, 1, 3));
                put_bits(data, 4, format, bits);
                digest(data, 11, format, plus);
                put_bits(data, 4, format, bits | sign);
                digest(data, 11, format, minus);
                ck_assert(!equal(plus, minus));
                free(data);
            }
        }
    }
}
END_TEST

/* Proves: hash_f64 and hash_reals agree about NaNs: one pattern each, the sign of zero kept. */
START_TEST(test_hash_single_values)
{
    uint64_t digests[4][2];
    const uint64_t bits[4] = {UINT64_C(0x7ff8000000000000), UINT64_C(0xfff0000000000001), 0, UINT64_C(1) << 63};
    for (int i = 0; i < 4; i++) {
        double value;
        struct hash hash;
        memcpy(&value, &bits[i], sizeof value);
        hash_init(&hash);
        hash_f64(&hash, value);
        hash_finish(&hash, digests[i]);
    }
    ck_assert(equal(digests[0], digests[1]));
    ck_assert(!equal(digests[2], digests[3]) && !equal(digests[0], digests[2]));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("hash");
    TCase *cases = tcase_create("hash");
    tcase_add_test(cases, test_hash_nans_are_one);
    tcase_add_test(cases, test_hash_zeros_differ);
    tcase_add_test(cases, test_hash_single_values);
    suite_add_tcase(suite, cases);
    return run_suite(suite, CK_NOFORK);
}
