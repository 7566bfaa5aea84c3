/* test_basics: the ground everything stands on: error, assertion, arena, tensor, format, hash, random. */
#include "sim/arena.h"
#include "sim/assertion.h"
#include "sim/error.h"
#include "sim/format.h"
#include "sim/sanitizer.h"
#include "sim/hash.h"
#include "sim/random.h"
#include "sim/tensor.h"
#include "tests/support/run_suite.h"

#include <check.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- error and assertion ---- */

/* The first error wins, whatever comes later, and every setter says false. */
START_TEST(error_first_wins)
{
    struct error error = {0};
    ck_assert(!error_is_set(&error));
    ck_assert(!error_input(&error, "found %d, want %s", 7, "3"));
    ck_assert(!error_internal(&error, "a consequence"));
    ck_assert(error_is_set(&error));
    ck_assert_int_eq(error.kind, ERROR_INPUT);
    ck_assert_str_eq(error.message, "found 7, want 3");
    struct error internal = {0};
    ck_assert(!error_internal(&internal, "x"));
    ck_assert_int_eq(internal.kind, 70);
}
END_TEST

/* A place and a hint are added once; the text has all parts in order and is cut, terminated, to any size. */
START_TEST(error_places_and_text)
{
    struct error error = {0};
    error_input(&error, "found %d", 7);
    error_at(&error, "a.json", 12, 5, "parallel.data");
    error_at(&error, "b.json", 99, 98, "other");
    error_hint(&error, "use %d", 8);
    error_hint(&error, "never this");
    const char *whole = "a.json:12:5: parallel.data: found 7\n  hint: use 8";
    char text[4096];
    error_text(&error, text, sizeof text);
    ck_assert_str_eq(text, whole);
    for (unsigned long size = 1; size <= strlen(whole) + 1; size++) {
        memset(text, '#', sizeof text);
        error_text(&error, text, size);
        ck_assert_uint_lt(strlen(text), size);
        ck_assert_int_eq(text[size], '#');
    }
    struct error plain = {0};
    error_at(&plain, "early.json", 3, 4, "too.early"); /* no error yet: must not stick to the next one */
    error_hint(&plain, "too early");
    error_input(&plain, "alone");
    error_text(&plain, text, sizeof text);
    ck_assert_str_eq(text, "alone");
    error_at(&plain, "c.json", 3, 0, NULL);
    error_text(&plain, text, sizeof text);
    ck_assert_str_eq(text, "c.json:3: alone");
}
END_TEST

/* Messages longer than their field are cut, not written past it. */
START_TEST(error_long_messages_are_cut)
{
    static char big[3001];
    memset(big, 'x', sizeof big - 1);
    struct error error = {0};
    error_input(&error, "%s", big);
    error_at(&error, big, 1, 1, big);
    error_hint(&error, "%s", big);
    ck_assert_uint_lt(strlen(error.message), sizeof error.message);
    ck_assert_uint_lt(strlen(error.file), sizeof error.file);
    ck_assert_uint_lt(strlen(error.path), sizeof error.path);
    ck_assert_uint_lt(strlen(error.hint), sizeof error.hint);
}
END_TEST

static void fail_assertion(void)
{
    assertion_set_replay("hpsim run x.json --seed 41");
    ASSERT_MESSAGE(1 + 1 == 3, "detail %d", 17);
}

static void fail_memory(void)
{
    memory_failed(12345);
}

/* Runs body in a child; gives its wait status and what it wrote to standard error. */
static int run_child(void (*body)(void), char *text, size_t size)
{
    int ends[2];
    ck_assert_int_eq(pipe(ends), 0);
    fflush(NULL);
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        close(ends[1]);
        body();
        _exit(0);
    }
    close(ends[1]);
    size_t used = 0;
    for (ssize_t more; used < size - 1 && (more = read(ends[0], text + used, size - 1 - used)) > 0;)
        used += (size_t)more;
    text[used] = '\0';
    close(ends[0]);
    int status = 0;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    return status;
}

/* A failed assertion aborts and tells the condition, the detail and the replay line; a true one is silent. */
START_TEST(assertion_tells_and_aborts)
{
    char text[8192];
    ASSERT(1 + 1 == 2);
    int status = run_child(fail_assertion, text, sizeof text);
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    ck_assert_ptr_nonnull(strstr(text, "1 + 1 == 3"));
    ck_assert_ptr_nonnull(strstr(text, "detail 17"));
    ck_assert_ptr_nonnull(strstr(text, "hpsim run x.json --seed 41"));
    ck_assert_ptr_nonnull(strstr(text, "fail_assertion"));
}
END_TEST

/* Out of memory is the environment's fault: exit status 2 and the size, not an abort. */
START_TEST(memory_failure_exits_2)
{
    char text[8192];
    int status = run_child(fail_memory, text, sizeof text);
    ck_assert(WIFEXITED(status));
    ck_assert_int_eq(WEXITSTATUS(status), 2);
    ck_assert_ptr_nonnull(strstr(text, "12345"));
}
END_TEST

/* ---- arena ---- */

enum { BLOCKS = 211 };
static size_t block_size(int i) { return (size_t)(i * 977 % 4093) + (i % 37 == 0 ? 150001 : 0); }

/* Blocks are aligned, do not overlap and keep their contents over chunk borders. After a reset the
 * same requests land in the same memory: chunks are kept. used falls back, peak does not. */
START_TEST(arena_blocks_and_reuse)
{
    struct arena *arena = arena_new("test", false);
    ck_assert_uint_eq(arena_used(arena), 0);
    unsigned char *blocks[BLOCKS];
    size_t sum = 0;
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < BLOCKS; i++) {
            unsigned char *block = arena_alloc(arena, block_size(i));
            if (round > 0)
                ck_assert_ptr_eq(block, blocks[i]);
            blocks[i] = block;
            ck_assert_uint_eq((uintptr_t)block % 64, 0);
            for (size_t j = 0; j < block_size(i); j++)
                block[j] = (unsigned char)(i * 31 + (int)j);
        }
        for (int i = 0; i < BLOCKS; i++)
            for (size_t j = 0; j < block_size(i); j++)
                if (blocks[i][j] != (unsigned char)(i * 31 + (int)j))
                    ck_abort_msg("block %d byte %zu", i, j);
        if (round == 0)
            sum = arena_used(arena);
        ck_assert_uint_eq(arena_used(arena), sum);
        arena_reset(arena);
        ck_assert_uint_eq(arena_used(arena), 0);
        ck_assert_uint_eq(arena_peak(arena), sum);
    }
    arena_free(arena);
    arena_free(NULL);
}
END_TEST

/* Nested marks release exactly what came after them, over chunk borders and from an empty arena on;
 * a kept chunk that is too small for the next request is passed over without harm. */
START_TEST(arena_marks_nest)
{
    struct arena *arena = arena_new("test", true);
    struct arena_mark empty = arena_mark(arena);
    char *first = arena_strdup(arena, "kept");
    struct arena_mark outer = arena_mark(arena);
    size_t used_outer = arena_used(arena);
    for (int i = 0; i < 7; i++)
        arena_alloc(arena, 50021);
    struct arena_mark inner = arena_mark(arena);
    size_t used_inner = arena_used(arena);
    char *again = arena_printf(arena, "%d-%s", 41, "x");
    ck_assert_str_eq(again, "41-x");
    arena_alloc(arena, 700001);
    arena_release(arena, inner);
    ck_assert_uint_eq(arena_used(arena), used_inner);
    ck_assert_ptr_eq(arena_alloc(arena, 5), again);
    arena_release(arena, outer);
    ck_assert_uint_eq(arena_used(arena), used_outer);
    ck_assert_str_eq(first, "kept");
    unsigned char *large = arena_alloc(arena, 3000017);
    memset(large, 1, 3000017);
    memset(arena_alloc(arena, 99), 2, 99);
    ck_assert_int_eq(large[3000016], 1);
    arena_release(arena, empty);
    ck_assert_uint_eq(arena_used(arena), 0);
    char *fresh = arena_strdup(arena, "again");
    ck_assert_str_eq(fresh, "again");
    arena_free(arena);
}
END_TEST

static void check_poisoned(const unsigned char *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (data[i] != 0xFF)
            ck_abort_msg("byte %zu is %d", i, data[i]);
}

/* In a poisoning arena fresh and released memory is NaN as fp64 and fp32 (and so in the upper halves
 * that are bf16), arena_zalloc's is zero. */
START_TEST(arena_poison)
{
    struct arena *arena = arena_new("test", true);
    for (int round = 0; round < 3; round++) {
        struct arena_mark mark = arena_mark(arena);
        unsigned char *data = arena_alloc(arena, 4999);
        check_poisoned(data, 4999);
        ck_assert(isnan(format_get(data, 11, FORMAT_FP64)) && isnan(format_get(data, 1013, FORMAT_FP32)));
        memset(data, 0, 4999);
        unsigned char *zeros = arena_zalloc(arena, 333);
        for (int i = 0; i < 333; i++)
            ck_assert_int_eq(zeros[i], 0);
        unsigned char *large = arena_zalloc(arena, 200003);
        if (round == 2)
            arena_reset(arena);
        else
            arena_release(arena, mark);
        SANITIZER_UNPOISON(data, 4999);
        SANITIZER_UNPOISON(zeros, 333);
        SANITIZER_UNPOISON(large, 200003);
        check_poisoned(data, 4999);
        check_poisoned(zeros, 333);
        check_poisoned(large, 200003);
    }
    arena_free(arena);
}
END_TEST

/* ---- tensor ---- */

/* Shapes, strides, counts; rows of a tensor are the elements that row-major order says. */
START_TEST(tensor_views)
{
    double values[3 * 5 * 7 * 2];
    for (int i = 0; i < 3 * 5 * 7 * 2; i++)
        values[i] = i;
    struct tensor t = tensor_4d(values, FORMAT_FP64, 3, 5, 7, 2);
    ck_assert(tensor_is_dense(t) && tensor_count(t) == 210 && tensor_bytes(t) == 1680);
    ck_assert(t.stride[0] == 70 && t.stride[1] == 14 && t.stride[2] == 2 && t.stride[3] == 1);
    struct tensor rows = tensor_rows(t, 1, 2);
    ck_assert(rows.shape[0] == 2 && tensor_count(rows) == 140 && tensor_is_dense(rows));
    ck_assert_double_eq(((double *)rows.data)[0], 70);
    ck_assert_int_eq(tensor_count(tensor_rows(t, 3, 0)), 0);
    float singles[6 * 11];
    struct tensor matrix = tensor_2d(singles, FORMAT_FP32, 6, 11);
    ck_assert_int_eq(tensor_bytes(matrix), 6 * 11 * 4);
    ck_assert_ptr_eq(tensor_rows(matrix, 4, 1).data, singles + 44);
    matrix.shape[1] = 9; /* nine columns of eleven: gaps between the rows */
    ck_assert(!tensor_is_dense(matrix));
    ck_assert(tensor_is_dense(tensor_rows(matrix, 2, 1))); /* but not within one */
    ck_assert_int_eq(tensor_count(tensor_1d(NULL, FORMAT_FP32, 13)), 13);
    ck_assert_ptr_null(tensor_rows(tensor_2d(NULL, FORMAT_FP32, 5, 3), 2, 2).data); /* plan mode: no data */
    ck_assert_int_eq(tensor_count(tensor_3d(NULL, FORMAT_FP32, 13, 0, 3)), 0);
}
END_TEST

/* ---- format ---- */

static uint64_t bits_of(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* The value of a pattern, from the definition: sign, e exponent bits, m significand bits. Without infinities
 * the last exponent is one like any other, but for its last fraction, which is NaN. */
static double decode(unsigned pattern, int e, int m, bool infinite)
{
    int exponent = (int)(pattern >> m & ((1u << e) - 1)), fraction = (int)(pattern & ((1u << m) - 1));
    int bias = (1 << (e - 1)) - 1;
    double value;
    if (exponent == (1 << e) - 1 && infinite)
        value = fraction == 0 ? (double)INFINITY : (double)NAN;
    else if (exponent == (1 << e) - 1 && fraction == (1 << m) - 1)
        value = (double)NAN;
    else if (exponent == 0)
        value = ldexp(fraction, 1 - bias - m);
    else
        value = ldexp(fraction + (1 << m), exponent - bias - m);
    return pattern >> (e + m) ? -value : value;
}

/* Rounds by all ways there are: scalar and, where fp32 holds the number, array; both must agree. */
static double round_checked(enum format format, double value)
{
    double rounded = format_round(format, value);
    if ((double)(float)value == value) {
        float stored[2] = {(float)value, 7.7f};
        format_round_array(format, stored, 1);
        bool same = isnan(rounded) ? isnan(stored[0]) : bits_of((double)stored[0]) == bits_of(rounded);
        if (!same || stored[1] != 7.7f)
            ck_abort_msg("%s %a: array %a, scalar %a", format_traits[format].name, value, (double)stored[0], rounded);
    }
    return rounded;
}

static void expect_round(enum format format, double value, double expected)
{
    double rounded = round_checked(format, value);
    if (isnan(expected) ? !isnan(rounded) : bits_of(rounded) != bits_of(expected))
        ck_abort_msg("%s %a: %a, not %a", format_traits[format].name, value, rounded, expected);
    rounded = round_checked(format, -value);
    if (isnan(expected) ? !isnan(rounded) : bits_of(rounded) != bits_of(-expected))
        ck_abort_msg("%s %a: %a, not %a", format_traits[format].name, -value, rounded, -expected);
}

/* Over every pattern: each value is its own rounding; between neighbours, the middle goes to the even
 * pattern and the next fp64 number on either side of it to the nearer one (so there is one rounding:
 * through fp32 that number would become the middle first). Past the last is infinity, or NaN where there
 * is none; subnormals and zero included. */
START_TEST(format_exhaustive)
{
    const struct { enum format format; int e, m; bool infinite; } cases[] = {
        {FORMAT_BF16, 8, 7, true}, {FORMAT_FP16, 5, 10, true},
        {FORMAT_FP8_E4M3, 4, 3, false}, {FORMAT_FP8_E5M2, 5, 2, true},
    };
    for (int c = 0; c < 4; c++) {
        enum format format = cases[c].format;
        int e = cases[c].e, m = cases[c].m;
        bool infinite = cases[c].infinite;
        double overflow = infinite ? (double)INFINITY : (double)NAN;
        unsigned patterns = 2u << (e + m), finite = 0;
        for (unsigned p = 0; p < patterns; p++) {
            double value = decode(p, e, m, infinite), rounded = round_checked(format, isnan(value) ? 1 : value);
            if (isnan(value)) {
                ck_assert(isnan(format_round(format, value)));
                float stored[3] = {(float)NAN, 1, (float)-NAN};
                format_round_array(format, stored, 3);
                ck_assert(isnan(stored[0]) && stored[1] == 1 && isnan(stored[2]));
            } else if (bits_of(rounded) != bits_of(value)) {
                ck_abort_msg("%s: pattern %04x", format_traits[format].name, p);
            }
            finite += isfinite(value) != 0;
        }
        finite /= 2; /* patterns 0 ... finite - 1 are the non-negative numbers */
        ck_assert_double_eq(decode(finite - 1, e, m, infinite), format_traits[format].largest);
        for (unsigned p = 0; p < finite; p++) {
            double low = decode(p, e, m, infinite), high = p + 1 < finite ? decode(p + 1, e, m, infinite) : overflow;
            double next = p + 1 == finite ? 2 * low - decode(p - 1, e, m, infinite) : high;
            double middle = low / 2 + next / 2; /* exact */
            expect_round(format, middle, p % 2 == 0 ? low : high);
            expect_round(format, nextafter(middle, 0), low);
            expect_round(format, nextafter(middle, (double)INFINITY), high);
        }
        expect_round(format, 1e300, overflow);
        expect_round(format, (double)INFINITY, overflow);
        expect_round(format, 0x1p-1074, 0);
    }
    const double known[] = {448, 464, 464.5, 0x1p-9, 0x1p-10}, become[] = {448, 448, (double)NAN, 0x1p-9, 0};
    for (int i = 0; i < 5; i++)
        expect_round(FORMAT_FP8_E4M3, known[i], become[i]);
    expect_round(FORMAT_FP8_E5M2, 57344, 57344);
    expect_round(FORMAT_FP8_E5M2, 61440, (double)INFINITY);
}
END_TEST

/* Every 4,099th fp32 pattern, NaNs of any payload too: array and scalar rounding agree, the result is
 * a value of the format and within half a step. */
START_TEST(format_array_equals_scalar)
{
    enum { RUN = 1021 };
    static float run[RUN], rounded[RUN];
    for (int c = FORMAT_BF16; c < FORMAT_COUNT; c++) {
        enum format format = (enum format)c;
        uint64_t pattern = 0;
        while (pattern < UINT64_C(1) << 32) {
            for (int i = 0; i < RUN; i++, pattern += 4099) {
                uint32_t bits = (uint32_t)pattern;
                memcpy(&run[i], &bits, sizeof bits);
            }
            memcpy(rounded, run, sizeof run);
            format_round_array(format, rounded, RUN);
            for (int i = 0; i < RUN; i++) {
                double expected = format_round(format, (double)run[i]);
                if (isnan(expected) ? !isnan(rounded[i]) : bits_of(expected) != bits_of((double)rounded[i]))
                    ck_abort_msg("%a: %a, not %a", (double)run[i], (double)rounded[i], expected);
            }
        }
    }
}
END_TEST

/* fp32 and fp64: halfway cases, limits, storage; arrays of them are left alone. Names and traits. */
START_TEST(format_storage_and_names)
{
    expect_round(FORMAT_FP32, 1 + 0x1p-24, 1);
    expect_round(FORMAT_FP32, 1 + 3 * 0x1p-24, 1 + 0x1p-22);
    expect_round(FORMAT_FP32, 0x1p128 - 0x1p103, (double)INFINITY);
    expect_round(FORMAT_FP32, nextafter(0x1p128 - 0x1p103, 0), 0x1p128 - 0x1p104);
    expect_round(FORMAT_FP32, 3 * 0x1p-150, 0x1p-148);
    expect_round(FORMAT_FP64, 0.1, 0.1);
    double wide[5] = {0.1, 1e300, -0.0, 5, 7};
    format_round_array(FORMAT_FP64, wide, 5);
    ck_assert(wide[0] == 0.1 && wide[1] == 1e300 && signbit(wide[2]));
    float narrow[3] = {0.1f, 3.0e38f, -1};
    format_round_array(FORMAT_FP32, narrow, 3);
    ck_assert(narrow[0] == 0.1f && narrow[1] == 3.0e38f);
    format_set(narrow, 2, FORMAT_FP32, 0.3);
    ck_assert_double_eq(format_get(narrow, 2, FORMAT_FP32), (double)0.3f);
    format_set(wide, 4, FORMAT_FP64, 0.3);
    ck_assert_double_eq(format_get(wide, 4, FORMAT_FP64), 0.3);
    for (int i = 0; i < FORMAT_COUNT; i++) {
        enum format format = FORMAT_COUNT;
        const struct format_traits *traits = &format_traits[i];
        ck_assert(format_parse(traits->name, &format) && format == (enum format)i);
        ck_assert_double_eq(traits->unit_roundoff, ldexp(1, -traits->significand_bits));
        ck_assert_uint_eq(format_storage_bytes(format), traits->storage == FORMAT_FP64 ? 8 : 4);
        expect_round(format, traits->largest, traits->largest);
        ck_assert_int_eq(ilogb(traits->largest), traits->exponent_max);
        expect_round(format, ldexp(1, traits->exponent_min), ldexp(1, traits->exponent_min));
    }
    enum format format = FORMAT_FP16;
    ck_assert(!format_parse("float", &format) && !format_parse("", &format) && !format_parse("FP32", &format));
    ck_assert_int_eq(format, FORMAT_FP16);
}
END_TEST

/* ---- hash ---- */

struct digest { uint64_t word[2]; };

static struct digest digest_reals(const void *data, size_t count, enum format format)
{
    struct hash hash;
    struct digest digest;
    hash_init(&hash);
    hash_reals(&hash, data, count, format);
    hash_finish(&hash, digest.word);
    return digest;
}

static struct digest digest_bytes(const void *data, size_t bytes)
{
    struct hash hash;
    struct digest digest;
    hash_init(&hash);
    hash_bytes(&hash, data, bytes);
    hash_finish(&hash, digest.word);
    return digest;
}

static int digest_compare(const void *a, const void *b)
{
    return memcmp(a, b, sizeof(struct digest));
}

static bool digests_differ(struct digest *digests, size_t count)
{
    qsort(digests, count, sizeof *digests, digest_compare);
    for (size_t i = 1; i < count; i++)
        if (digest_compare(&digests[i - 1], &digests[i]) == 0)
            return false;
    return true;
}

/* Each single bit of the input changes both words of the digest, about half of their bits: none is
 * lost at block or tail borders. */
START_TEST(hash_every_bit_counts)
{
    const size_t sizes[] = {1, 3, 8, 13, 31, 32, 33, 77, 1027};
    static unsigned char data[1027];
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        for (size_t i = 0; i < sizes[s]; i++)
            data[i] = (unsigned char)(i * 7 + 3);
        struct digest base = digest_bytes(data, sizes[s]);
        double flipped = 0;
        for (size_t bit = 0; bit < 8 * sizes[s]; bit++) {
            data[bit / 8] ^= (unsigned char)(1 << bit % 8);
            struct digest other = digest_bytes(data, sizes[s]);
            data[bit / 8] ^= (unsigned char)(1 << bit % 8);
            ck_assert(base.word[0] != other.word[0] && base.word[1] != other.word[1]);
            flipped += __builtin_popcountll(base.word[0] ^ other.word[0]);
            flipped += __builtin_popcountll(base.word[1] ^ other.word[1]);
        }
        flipped /= (double)(8 * sizes[s]);
        ck_assert_double_gt(flipped, 52);
        ck_assert_double_lt(flipped, 76);
    }
}
END_TEST

/* What faults do to buffers is told apart: one or two flipped signs, any two swapped, one zero more,
 * shifted by one; fp32 and fp64. */
START_TEST(hash_tells_faults_apart)
{
    enum { N = 43 };
    for (int wide = 0; wide < 2; wide++) {
        enum format format = wide ? FORMAT_FP64 : FORMAT_FP32;
        static double storage[N + 2];
        static struct digest digests[N * N + 4];
        size_t count = 0;
        memset(storage, 0, sizeof storage);
        for (size_t i = 0; i < N; i++)
            format_set(storage, i, format, (double)i * 0.37 + 1);
        digests[count++] = digest_reals(storage, N, format);
        digests[count++] = digest_reals(storage, N + 1, format);
        digests[count++] = digest_reals(storage, N - 1, format);
        digests[count++] = digest_reals((char *)storage + format_storage_bytes(format), N, format);
        for (size_t i = 0; i < N; i++) {
            for (size_t j = i; j < N; j++) {
                double a = format_get(storage, i, format), b = format_get(storage, j, format);
                format_set(storage, i, format, -a);
                format_set(storage, j, format, -b);
                digests[count++] = digest_reals(storage, N, format);
                format_set(storage, i, format, b);
                format_set(storage, j, format, a);
                if (i != j)
                    digests[count++] = digest_reals(storage, N, format);
                format_set(storage, i, format, a);
                format_set(storage, j, format, b);
            }
        }
        ck_assert(digests_differ(digests, count));
    }
}
END_TEST

/* Every NaN is one NaN wherever it stands, other numbers beside it still count, -0 is not +0 and an
 * infinity is not a NaN. */
START_TEST(hash_canonical_nans)
{
    const size_t counts[] = {1, 3, 31, 255, 257, 1021};
    const uint64_t nan64[] = {0x7FF8000000000000, 0xFFF8000000000000, 0x7FF0000000000001, 0xFFFFFFFFFFFFFFFF};
    const uint32_t nan32[] = {0x7FC00000, 0xFFC00000, 0x7F800001, 0xFFFFFFFF};
    static uint64_t wide[1021];
    static uint32_t narrow[1021];
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
        size_t n = counts[c], at[] = {0, n / 2, n - 1};
        for (int place = 0; place < 3; place++) {
            for (size_t i = 0; i < n; i++) {
                wide[i] = bits_of((double)i + 0.5);
                float value = (float)i + 0.5f;
                memcpy(&narrow[i], &value, sizeof value);
            }
            struct digest digests[2][4];
            for (int k = 0; k < 4; k++) {
                wide[at[place]] = nan64[k];
                narrow[at[place]] = nan32[k];
                digests[0][k] = digest_reals(wide, n, FORMAT_FP64);
                digests[1][k] = digest_reals(narrow, n, FORMAT_BF16); /* stored as fp32 */
                ck_assert(digest_compare(&digests[0][0], &digests[0][k]) == 0);
                ck_assert(digest_compare(&digests[1][0], &digests[1][k]) == 0);
            }
            struct digest others[2][5] = {{digests[0][0]}, {digests[1][0]}};
            const uint64_t values64[] = {0x7FF0000000000000, 0xFFF0000000000000, 0, 0x8000000000000000};
            for (int k = 0; k < 4; k++) {
                wide[at[place]] = values64[k];
                narrow[at[place]] = (uint32_t)(values64[k] >> 32 & 0x80000000) | (k < 2 ? 0x7F800000 : 0);
                others[0][k + 1] = digest_reals(wide, n, FORMAT_FP64);
                others[1][k + 1] = digest_reals(narrow, n, FORMAT_FP32);
            }
            ck_assert(digests_differ(others[0], 5) && digests_differ(others[1], 5));
        }
    }
    struct hash a, b;
    hash_init(&a);
    hash_init(&b);
    hash_f64(&a, (double)NAN);
    hash_f64(&b, -(double)NAN);
    ck_assert(a.lane[0] == b.lane[0] && a.lane[1] == b.lane[1]);
    hash_f64(&a, 0.0);
    hash_f64(&b, -0.0);
    ck_assert(a.lane[0] != b.lane[0] && a.lane[1] != b.lane[1]);
}
END_TEST

/* Where one text ends and the next begins counts; names give different keys; hash_mix is one to one. */
START_TEST(hash_texts_and_hex)
{
    const char *pairs[][2] = {{"ab", "c"}, {"a", "bc"}, {"abc", ""}, {"", "abc"}, {"c", "ab"}};
    struct digest digests[5];
    for (int i = 0; i < 5; i++) {
        struct hash hash;
        hash_init(&hash);
        hash_text(&hash, pairs[i][0]);
        hash_text(&hash, pairs[i][1]);
        hash_finish(&hash, digests[i].word);
    }
    ck_assert(digests_differ(digests, 5));
    const uint64_t digest[2] = {UINT64_C(0x0123456789ABCDEF), UINT64_C(0x00000000000000F7)};
    char hex[33];
    hash_hex(digest, hex);
    ck_assert_str_eq(hex, "0123456789abcdef00000000000000f7");
    struct digest keys[2003];
    for (int i = 0; i < 2003; i++) {
        char name[32];
        snprintf(name, sizeof name, "layers.%d.weight", i);
        keys[i] = (struct digest){{hash_string(name), 0}};
    }
    ck_assert(digests_differ(keys, 2003));
    for (int i = 0; i < 2003; i++)
        keys[i] = (struct digest){{hash_mix((uint64_t)i << (i % 2 ? 51 : 0)), 0}};
    ck_assert(digests_differ(keys, 2003));
}
END_TEST

/* ---- random ---- */

/* A draw depends on (seed, name, index) alone: at any time, in any order, beside any other stream. */
START_TEST(random_is_stateless)
{
    struct random_stream a = random_stream(5, "init.w"), b = random_stream(5, "init.w");
    struct random_stream other = random_stream(5, "init.v"), seeded = random_stream(6, "init.w");
    uint64_t at[101];
    for (uint64_t i = 101; i-- > 0;)
        at[i] = random_at(&a, i);
    int equal = 0;
    for (uint64_t i = 0; i < 101; i++) {
        ck_assert_uint_eq(random_u64(&b), at[i]);
        equal += random_u64(&other) == at[i] || random_u64(&seeded) == at[i];
    }
    ck_assert_int_eq(equal, 0);
    ck_assert_double_eq(random_unit_at(&a, 33), (double)(at[33] >> 11) * 0x1p-53);
    ck_assert_double_eq(random_unit(&a), random_unit_at(&b, 0));
}
END_TEST

/* Uniform draws: mean, variance, 64 bins, and no correlation of neighbours or of streams (all bounds
 * are about five standard deviations; the draws are fixed, so this never flickers). */
START_TEST(random_unit_is_uniform)
{
    enum { N = 200003, BINS = 64 };
    struct random_stream a = random_stream(1, "a"), b = random_stream(2, "a");
    double sum = 0, square = 0, next = 0, cross = 0;
    int bins[BINS] = {0};
    for (uint64_t i = 0; i < N; i++) {
        double x = random_unit_at(&a, i) - 0.5;
        ck_assert(x >= -0.5 && x < 0.5);
        sum += x;
        square += x * x;
        next += x * (random_unit_at(&a, i + 1) - 0.5);
        cross += x * (random_unit_at(&b, i) - 0.5);
        bins[(int)((x + 0.5) * BINS)]++;
    }
    double chi = 0, expected = (double)N / BINS;
    for (int i = 0; i < BINS; i++)
        chi += (bins[i] - expected) * (bins[i] - expected) / expected;
    ck_assert_double_lt(fabs(sum / N), 5 * sqrt(1.0 / 12 / N));
    ck_assert_double_lt(fabs(square / N - 1.0 / 12), 5 * sqrt(1.0 / 180 / N));
    ck_assert_double_lt(fabs(next / N), 5.0 / 12 / sqrt(N));
    ck_assert_double_lt(fabs(cross / N), 5.0 / 12 / sqrt(N));
    ck_assert_double_lt(fabs(chi - (BINS - 1)), 5 * sqrt(2.0 * (BINS - 1)));
}
END_TEST

static int double_compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Normal draws: four moments, the tails, and the whole distribution (Kolmogorov-Smirnov against erfc). */
START_TEST(random_normal_is_normal)
{
    enum { N = 200003 };
    static double draws[N];
    struct random_stream stream = random_stream(77, "weights");
    double m1 = 0, m2 = 0, m3 = 0, m4 = 0, next = 0;
    int beyond = 0;
    for (uint64_t i = 0; i < N; i++) {
        double x = random_normal_at(&stream, i);
        draws[i] = x;
        m1 += x;
        m2 += x * x;
        m3 += x * x * x;
        m4 += x * x * x * x;
        next += i > 0 ? x * draws[i - 1] : 0;
        beyond += fabs(x) > 3;
    }
    ck_assert_double_lt(fabs(m1 / N), 5 / sqrt(N));
    ck_assert_double_lt(fabs(m2 / N - 1), 5 * sqrt(2.0 / N));
    ck_assert_double_lt(fabs(m3 / N), 5 * sqrt(15.0 / N));
    ck_assert_double_lt(fabs(m4 / N - 3), 5 * sqrt(96.0 / N));
    ck_assert_double_lt(fabs(next / N), 5 / sqrt(N));
    ck_assert_double_lt(fabs(beyond - 0.0026998 * N), 5 * sqrt(0.0026998 * N));
    qsort(draws, N, sizeof draws[0], double_compare);
    double worst = 0;
    for (int i = 0; i < N; i++)
        worst = fmax(worst, fabs((i + 0.5) / N - 0.5 * erfc(-draws[i] / sqrt(2))));
    ck_assert_double_lt(worst, 2 / sqrt(N));
    ck_assert_double_gt(draws[N - 1], 4);
    ck_assert_double_lt(draws[0], -4);
}
END_TEST

/* Whole numbers below a bound: in range, uniform for a small odd bound and for one close to 2^64,
 * where a plain remainder would favour the lower half two to one. */
START_TEST(random_below_is_unbiased)
{
    enum { N = 70001 };
    struct random_stream stream = random_stream(3, "below");
    int counts[7] = {0}, low = 0;
    const uint64_t large = UINT64_C(3) << 62;
    for (int i = 0; i < N; i++) {
        uint64_t x = random_below(&stream, 7), y = random_below(&stream, large);
        ck_assert(x < 7 && y < large);
        counts[x]++;
        low += y < large / 2;
    }
    for (int i = 0; i < 7; i++)
        ck_assert_double_lt(fabs(counts[i] - N / 7.0), 5 * sqrt(N / 7.0));
    ck_assert_double_lt(fabs(low - N / 2.0), 5 * sqrt(N / 4.0));
    ck_assert_uint_eq(random_below(&stream, 1), 0);
}
END_TEST

/* A shuffle is a permutation, and each of the 24 orders of four items comes equally often. */
START_TEST(random_shuffle_is_fair)
{
    enum { N = 48007 };
    struct random_stream stream = random_stream(9, "order");
    int orders[256] = {0}, seen = 0;
    for (int i = 0; i < N; i++) {
        int items[4] = {0, 1, 2, 3};
        random_shuffle(&stream, items, 4);
        orders[items[0] | items[1] << 2 | items[2] << 4 | items[3] << 6]++;
    }
    for (int i = 0; i < 256; i++) {
        if (orders[i] == 0)
            continue;
        int mask = 1 << (i & 3) | 1 << (i >> 2 & 3) | 1 << (i >> 4 & 3) | 1 << (i >> 6);
        ck_assert_int_eq(mask, 15);
        ck_assert_double_lt(fabs(orders[i] - N / 24.0), 5 * sqrt(N / 24.0));
        seen++;
    }
    ck_assert_int_eq(seen, 24);
    random_shuffle(&stream, NULL, 0);
}
END_TEST

/* ---- the same bits on every machine ---- */

/* Digests, draws and normals as they were when this was written: a compiler, a processor or a C library
 * that gives other bits is found here. A deliberate change of hash.c or random.c changes these lines. */
START_TEST(bits_are_pinned)
{
    struct random_stream stream = random_stream(2026, "pinned");
    static double normals[5003];
    for (uint64_t i = 0; i < 5003; i++)
        normals[i] = random_normal_at(&stream, i);
    struct digest wide = digest_reals(normals, 5003, FORMAT_FP64);
    char hex[33];
    hash_hex(wide.word, hex);
    ck_assert_str_eq(hex, "c72d9deec7cbd583656840cff31c019a");
    struct digest text = digest_bytes("abcdefghijklmnopqrstuvwxyz0123456789-", 37);
    hash_hex(text.word, hex);
    ck_assert_str_eq(hex, "e8548e3fe68899d0ab894dae157aba47");
    ck_assert_uint_eq(random_at(&stream, 41), UINT64_C(0xB80120826B5C44DB));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("basics");
    TCase *tcase = tcase_create("basics");
    tcase_set_timeout(tcase, 60);
    const TTest *tests[] = {
        error_first_wins, error_places_and_text, error_long_messages_are_cut, assertion_tells_and_aborts,
        memory_failure_exits_2, arena_blocks_and_reuse, arena_marks_nest, arena_poison, tensor_views,
        format_exhaustive, format_array_equals_scalar, format_storage_and_names, hash_every_bit_counts,
        hash_tells_faults_apart, hash_canonical_nans, hash_texts_and_hex, random_is_stateless,
        random_unit_is_uniform, random_normal_is_normal, random_below_is_unbiased, random_shuffle_is_fair,
        bits_are_pinned,
    };
    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++)
        tcase_add_test(tcase, tests[i]);
    suite_add_tcase(suite, tcase);
    return run_suite(suite, CK_NOFORK);
}
