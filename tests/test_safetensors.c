/* test_safetensors: files round-trip bit for bit, the four dtypes decode, every malformed file is an
 * error that names the file and what is wrong; and initial values depend on seed and name only. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "model/safetensors.h"
#include "model/transformer.h"
#include "sim/arena.h"
#include "tests/support/run_suite.h"

static char directory[256];

static const char *path_of(const char *name)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    return path;
}

static void setup(void)
{
    const char *base = getenv("TMPDIR");
    snprintf(directory, sizeof directory, "%s/hpsim_safetensors_XXXXXX", base == NULL ? P_tmpdir : base);
    ck_assert_ptr_nonnull(mkdtemp(directory));
}

static void teardown(void)
{
    static const char *const names[] = { "file", "file.tmp", "second" };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        remove(path_of(names[i]));
    ck_assert_int_eq(rmdir(directory), 0);
}

/* A file of the prefix `length` (-1: the header's), the header and `data` bytes 0, 1, 2, ... */
static void write_raw(int64_t length, const char *header, size_t header_bytes, size_t data)
{
    FILE *file = fopen(path_of("file"), "wb");
    uint64_t prefix = length < 0 ? header_bytes : (uint64_t)length;
    for (int i = 0; i < 8; i++)
        fputc((int)(prefix >> (8 * i) & 0xff), file);
    fwrite(header, 1, header_bytes, file);
    for (size_t i = 0; i < data; i++)
        fputc((int)(i & 0xff), file);
    ck_assert_int_eq(fclose(file), 0);
}

/* Opening fails as an input error that says `expected` and where. */
static void expect_failure(const char *what, const char *expected)
{
    struct error error = { .kind = ERROR_NONE };
    struct safetensors *st = safetensors_open(path_of("file"), &error);
    ck_assert_msg(st == NULL, "accepted: %s", what);
    ck_assert_msg(error.kind == ERROR_INPUT, "no error: %s", what);
    ck_assert_str_eq(error.file, path_of("file"));
    ck_assert_msg(strstr(error.message, expected) != NULL, "%s: says '%s', expected '%s'", what, error.message,
                  expected);
}

#define A8 "\"a\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[0,8]}"

/* Malformed headers: the text, the bytes of data after it, a part of the message. */
static const struct { const char *header; size_t data; const char *message; } malformed[] = {
    { "", 0, "begin with '{'" },
    { "[1]", 0, "begin with '{'" },
    { "\xef\xbb\xbf{}", 0, "begin with '{'" },
    { " {}", 0, "begin with '{'" },
    { "{", 0, "not valid JSON" },
    { "{" A8 ",}", 8, "not valid JSON" },
    { "{\"a\":}", 0, "not valid JSON" },
    { "{" A8 "} x", 8, "text after the end" },
    { "{" A8 "}{}", 8, "text after the end" },
    { "{\"a\\u0000b\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[0,8]}}", 8, "control character" },
    { "{\"a\x01\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[0,8]}}", 8, "control character" },
    { "{" A8 "," A8 "}", 8, "more than once" },
    { "{\"__metadata__\":{},\"__metadata__\":{}}", 0, "more than once" },
    { "{\"__metadata__\":{\"k\":\"1\",\"l\":\"\",\"k\":\"2\"}}", 0, "more than once" },
    { "{\"__metadata__\":[]}", 0, "not an object" },
    { "{\"__metadata__\":{\"k\":1}}", 0, "not a string" },
    { "{\"a\":5}", 0, "is not an object with" },
    { "{\"a\":null}", 0, "is not an object with" },
    { "{\"a\":{}}", 0, "is not an object with" },
    { "{\"a\":{\"shape\":[1],\"data_offsets\":[0,8]}}", 8, "is not an object with" },
    { "{\"a\":{\"dtype\":\"F64\",\"data_offsets\":[0,8]}}", 8, "is not an object with" },
    { "{\"a\":{\"dtype\":\"F64\",\"shape\":[1]}}", 8, "is not an object with" },
    { "{\"a\":{\"DTYPE\":\"F64\",\"shape\":[1],\"data_offsets\":[0,8]}}", 8, "is not an object with" },
    { "{\"a\":{\"dtype\":\"F64\",\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[0,8]}}", 8, "is not an object" },
    { "{\"a\":{\"dtype\":64,\"shape\":[1],\"data_offsets\":[0,8]}}", 8, "dtype is not a string" },
    { "{\"a\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[0,8]}}", 8, "\"I64\" is not supported" },
    { "{\"a\":{\"dtype\":\"f64\",\"shape\":[1],\"data_offsets\":[0,8]}}", 8, "\"f64\" is not supported" },
    { "{\"a\":{\"dtype\":\"F64\",\"shape\":1,\"data_offsets\":[0,8]}}", 8, "shape is not a list" },
    { "{\"a\":{\"dtype\":\"F64\",\"shape\":[-1],\"data_offsets\":[0,8]}}", 8, "shape is not a list" },
    { "{\"a\":{\"dtype\":\"F64\",\"shape\":[0.5],\"data_offsets\":[0,4]}}", 4, "shape is not a list" },
    { "{\"a\":{\"dtype\":\"F64\",\"shape\":[\"1\"],\"data_offsets\":[0,8]}}", 8, "shape is not a list" },
    { "{\"a\":{\"dtype\":\"F64\",\"shape\":[1e999],\"data_offsets\":[0,8]}}", 8, "shape is not a list" },
    { "{\"a\":{\"dtype\":\"F64\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,8]}}", 8, "at most 8" },
    { "{\"a\":{\"dtype\":\"F64\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,8]}}", 8, "can be counted" },
    { "{\"a\":{\"dtype\":\"F64\",\"shape\":[2305843009213693952],\"data_offsets\":[0,8]}}", 8, "shape is not a list" },
    { "{\"a\":{\"dtype\":\"F64\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "take 16 bytes, data_offsets span 8" },
    { "{\"a\":{\"dtype\":\"F16\",\"shape\":[2,3],\"data_offsets\":[0,8]}}", 8, "take 12 bytes, data_offsets span 8" },
    { "{\"a\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[0]}}", 8, "two non-negative integers" },
    { "{\"a\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[0,8,8]}}", 8, "two non-negative integers" },
    { "{\"a\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[-8,0]}}", 8, "two non-negative integers" },
    { "{\"a\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":{\"0\":0,\"1\":8}}}", 8, "two non-negative integers" },
    { "{\"a\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[8,0]}}", 8, "after their end" },
    { "{" A8 "}", 7, "the file has 7 bytes of data" },
    { "{\"a\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[9007199254740984,9007199254740992]}}", 8,
      "the file has 8" },
    { "{" A8 ",\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8, "overlaps that of \"a\"" },
    { "{" A8 ",\"b\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[0,8]}}", 8, "overlaps that of \"a\"" },
    { "{" A8 ",\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[12,16]}}", 16, "4 bytes before its data" },
    { "{" A8 "}", 9, "1 bytes at the end" },
    { "{}", 3, "3 bytes at the end" },
};
enum { MALFORMED = sizeof malformed / sizeof malformed[0] };

START_TEST(test_malformed_header)
{
    write_raw(-1, malformed[_i].header, strlen(malformed[_i].header), malformed[_i].data);
    expect_failure(malformed[_i].header, malformed[_i].message);
}
END_TEST

/* What is wrong before the header's text: no file, a directory, too short, lengths that lie. */
START_TEST(test_malformed_file)
{
    expect_failure("no file", "cannot be opened");
    ck_assert_int_eq(mkdir(path_of("file"), 0700), 0);
    expect_failure("directory", "not a regular file");
    ck_assert_int_eq(rmdir(path_of("file")), 0);
    for (int bytes = 0; bytes < 8; bytes++) {
        FILE *file = fopen(path_of("file"), "wb");
        fwrite("\x02\0\0\0\0\0\0", 1, (size_t)bytes, file);
        fclose(file);
        expect_failure("short", "is truncated");
    }
    write_raw(3, "{}", 2, 0);
    expect_failure("header past the end", "is truncated");
    write_raw(100000001, "{}", 2, 0);
    expect_failure("header over the limit", "at most 100000000");
    write_raw(INT64_MAX, "{}", 2, 0);
    expect_failure("huge header", "at most 100000000");
    write_raw(-1, "{\0}", 3, 0);
    expect_failure("NUL", "control character");

    /* deeper than cJSON goes */
    char deep[5000];
    memset(deep, '[', sizeof deep);
    memcpy(deep, "{\"a\":", 5);
    write_raw(-1, deep, sizeof deep, 0);
    expect_failure("deep", "not valid JSON");
}
END_TEST

/* Every prefix of a good file is an error or, at full length, the file; never a crash. */
START_TEST(test_truncated)
{
    const char *header = "{" A8 ",\"__metadata__\":{\"k\":\"v\"}}  ";
    size_t length = strlen(header);
    write_raw(-1, header, length, 8);
    struct error good = { .kind = ERROR_NONE };
    struct safetensors *st = safetensors_open(path_of("file"), &good);
    ck_assert_msg(st != NULL, "%s", good.message);
    ck_assert_str_eq(safetensors_metadata(st, "k"), "v");
    ck_assert_ptr_null(safetensors_metadata(st, "K"));
    safetensors_close(st);
    for (size_t bytes = 8 + length + 7; bytes > 0; bytes--) {
        ck_assert_int_eq(truncate(path_of("file"), (off_t)bytes), 0);
        struct error error = { .kind = ERROR_NONE };
        ck_assert_ptr_null(safetensors_open(path_of("file"), &error));
        ck_assert_int_eq(error.kind, ERROR_INPUT);
    }
    /* every header cut short with a prefix that says so */
    for (size_t bytes = 0; bytes < strlen(header) - 3; bytes++) {
        struct error error = { .kind = ERROR_NONE };
        write_raw(-1, header, bytes, 8);
        ck_assert_ptr_null(safetensors_open(path_of("file"), &error));
        ck_assert_int_eq(error.kind, ERROR_INPUT);
    }
}
END_TEST

/* Any one byte of the header replaced by some others: an error or a valid file, never a crash. */
START_TEST(test_mutated)
{
    static const char replacements[] = "\"\\{}[],:0-9e\x7f\xff";
    char header[] = "{" A8 ",\"b\":{\"dtype\":\"F32\",\"shape\":[3,5],\"data_offsets\":[8,68]}}";
    int accepted = 0, refused = 0;
    for (size_t at = 0; at < sizeof header - 1; at++) {
        char original = header[at];
        for (size_t r = 0; r < sizeof replacements; r++) {
            header[at] = replacements[r];
            struct error error = { .kind = ERROR_NONE };
            write_raw(-1, header, sizeof header - 1, 68);
            struct safetensors *st = safetensors_open(path_of("file"), &error);
            ck_assert((st == NULL) == (error.kind == ERROR_INPUT));
            *(st == NULL ? &refused : &accepted) += 1;
            safetensors_close(st);
        }
        header[at] = original;
    }
    ck_assert_int_gt(accepted, 0);
    ck_assert_int_gt(refused, accepted);
}
END_TEST

/* Position-coded numbers that need all bits. */
static void fill(struct tensor t, double base)
{
    for (int64_t i = 0; i < tensor_count(t); i++)
        format_set(t.data, (size_t)i, t.storage, base + (double)i / 3.0);
}

static void expect_bits(struct safetensors *st, const char *name, struct tensor written)
{
    struct error error = { .kind = ERROR_NONE };
    void *data = malloc((size_t)tensor_bytes(written) + 1);
    struct tensor read = written;
    read.data = data;
    ck_assert_msg(safetensors_read(st, name, written.dims, written.shape, read, &error), "%s", error.message);
    ck_assert_int_eq(memcmp(data, written.data, (size_t)tensor_bytes(written)), 0);
    free(data);
}

static void compare_files(const char *a, const char *b)
{
    char first[512];
    snprintf(first, sizeof first, "%s", path_of(a));
    FILE *x = fopen(first, "rb"), *y = fopen(path_of(b), "rb");
    int c;
    do {
        c = fgetc(x);
        ck_assert_int_eq(c, fgetc(y));
    } while (c != EOF);
    fclose(x);
    fclose(y);
}

/* Written tensors come back bit for bit, in order, with names that need escapes and metadata; the bytes
 * are the same on a second writing; an existing file is replaced; no temporary stays. */
START_TEST(test_round_trip)
{
    static double wide[5 * 7], special[4] = { -0.0, INFINITY, 5e-324, 1.7976931348623157e308 };
    static float narrow[3 * 1201]; /* several buffers long */
    struct safetensors_entry entries[] = {
        { "layers.0.attention.wq.weight", tensor_2d(wide, FORMAT_FP64, 5, 7) },
        { "quote\" back\\slash \n tab\t \xc3\xa9", tensor_2d(narrow, FORMAT_FP32, 3, 1201) },
        { "special", tensor_1d(special, FORMAT_FP64, 4) },
        { "empty", tensor_2d(narrow, FORMAT_FP32, 0, 3) },
    };
    struct safetensors_note notes[] = { { "format", "pt" }, { "step", "17\\" } };
    struct error error = { .kind = ERROR_NONE };
    fill(entries[0].tensor, 1.0);
    fill(entries[1].tensor, -50.0);
    write_raw(-1, "old", 3, 100);
    ck_assert_msg(safetensors_write(path_of("file"), entries, 4, notes, 2, &error), "%s", error.message);
    ck_assert_int_ne(access(path_of("file.tmp"), F_OK), 0);
    ck_assert(safetensors_write(path_of("second"), entries, 4, notes, 2, &error));
    compare_files("file", "second");

    struct safetensors *st = safetensors_open(path_of("file"), &error);
    ck_assert_msg(st != NULL, "%s", error.message);
    ck_assert_uint_eq(safetensors_count(st), 4);
    const int64_t *shape;
    size_t index = 99;
    ck_assert_int_eq(safetensors_shape(st, 1, &shape), 2);
    ck_assert(shape[0] == 3 && shape[1] == 1201);
    ck_assert_int_eq(safetensors_dtype(st, 0), FORMAT_FP64);
    ck_assert_int_eq(safetensors_dtype(st, 1), FORMAT_FP32);
    ck_assert(safetensors_find(st, "special", &index) && index == 2);
    ck_assert(!safetensors_find(st, "Special", &index) && index == 2);
    ck_assert_str_eq(safetensors_metadata(st, "step"), "17\\");
    for (int i = 3; i >= 0; i--) { /* out of order */
        ck_assert_str_eq(safetensors_name(st, (size_t)i), entries[i].name);
        expect_bits(st, entries[i].name, entries[i].tensor);
    }
    safetensors_close(st);
}
END_TEST

/* No tensors and no metadata is a file too. */
START_TEST(test_empty_file)
{
    struct error error = { .kind = ERROR_NONE };
    size_t index;
    ck_assert(safetensors_write(path_of("file"), NULL, 0, NULL, 0, &error));
    struct safetensors *st = safetensors_open(path_of("file"), &error);
    ck_assert_msg(st != NULL, "%s", error.message);
    ck_assert_uint_eq(safetensors_count(st), 0);
    ck_assert(!safetensors_find(st, "", &index));
    ck_assert_ptr_null(safetensors_metadata(st, "k"));
    safetensors_close(st);
    safetensors_close(NULL);
}
END_TEST

/* BF16, F16, F32 and F64 decode to the numbers that they are, into fp64 and, rounded, fp32. */
START_TEST(test_dtypes)
{
    static const uint8_t data[] = {
        0x80, 0x3f, 0xc0, 0xc0, 0x80, 0x7f,                         /* BF16 1, -6, inf */
        0x00, 0x3c, 0x01, 0x00, 0xff, 0xfb, 0x00, 0x7c, 0x00, 0x7e, /* F16 1, 2^-24, -65504, inf, NaN */
        0x00, 0x00, 0x20, 0xc0,                                     /* F32 -2.5 */
        0x9a, 0x99, 0x99, 0x99, 0x99, 0x99, 0xb9, 0x3f,             /* F64 0.1 */
    };
    const char *header = "{\"b\":{\"dtype\":\"BF16\",\"shape\":[3],\"data_offsets\":[0,6]},"
                         "\"scalar\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":[20,28]},"
                         "\"h\":{\"data_offsets\":[6,16],\"dtype\":\"F16\",\"shape\":[5,1]},"
                         "\"s\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[16,20]}}";
    write_raw(-1, header, strlen(header), 0);
    FILE *file = fopen(path_of("file"), "ab");
    fwrite(data, 1, sizeof data, file);
    fclose(file);
    struct error error = { .kind = ERROR_NONE };
    struct safetensors *st = safetensors_open(path_of("file"), &error);
    ck_assert_msg(st != NULL, "%s", error.message);
    ck_assert_str_eq(safetensors_name(st, 1), "h"); /* by position of the data */
    double b[3], h[5], s[1], scalar[1];
    float tenth[1];
    ck_assert(safetensors_read(st, "b", 1, (int64_t[]){ 3 }, tensor_1d(b, FORMAT_FP64, 3), &error));
    ck_assert(b[0] == 1 && b[1] == -6 && b[2] == INFINITY);
    ck_assert(safetensors_read(st, "h", 2, (int64_t[]){ 5, 1 }, tensor_1d(h, FORMAT_FP64, 5), &error));
    ck_assert(h[0] == 1 && h[1] == ldexp(1, -24) && h[2] == -65504 && h[3] == INFINITY && isnan(h[4]));
    ck_assert(safetensors_read(st, "s", 1, (int64_t[]){ 1 }, tensor_1d(s, FORMAT_FP64, 1), &error));
    ck_assert(s[0] == -2.5);
    ck_assert(safetensors_read(st, "scalar", 0, NULL, tensor_1d(scalar, FORMAT_FP64, 1), &error));
    ck_assert(safetensors_read(st, "scalar", 0, NULL, tensor_1d(tenth, FORMAT_FP32, 1), &error));
    ck_assert(scalar[0] == 0.1 && tenth[0] == 0.1f);
    safetensors_close(st);
}
END_TEST

/* Reading what is not there, or under another shape, or from a file that shrank, says so. */
START_TEST(test_read_errors)
{
    static double numbers[6];
    struct safetensors_entry entry = { "a", tensor_2d(numbers, FORMAT_FP64, 2, 3) };
    struct error missing = { .kind = ERROR_NONE }, turned = missing, flat = missing, shrunk = missing;
    struct error unwritable = missing;
    ck_assert(safetensors_write(path_of("file"), &entry, 1, NULL, 0, &missing));
    struct safetensors *st = safetensors_open(path_of("file"), &missing);
    ck_assert_ptr_nonnull(st);
    ck_assert(!safetensors_read(st, "b", 2, (int64_t[]){ 2, 3 }, entry.tensor, &missing));
    ck_assert_str_eq(missing.path, "b");
    ck_assert(!safetensors_read(st, "a", 2, (int64_t[]){ 3, 2 }, entry.tensor, &turned));
    ck_assert_ptr_nonnull(strstr(turned.message, "[2, 3], expected [3, 2]"));
    ck_assert(!safetensors_read(st, "a", 1, (int64_t[]){ 6 }, entry.tensor, &flat));
    ck_assert_ptr_nonnull(strstr(flat.message, "[2, 3], expected [6]"));
    ck_assert_int_eq(truncate(path_of("file"), 90), 0);
    ck_assert(!safetensors_read(st, "a", 2, (int64_t[]){ 2, 3 }, entry.tensor, &shrunk));
    ck_assert_str_eq(shrunk.file, path_of("file"));
    safetensors_close(st);
    ck_assert(!safetensors_write(path_of("no/such/file"), &entry, 1, NULL, 0, &unwritable));
    ck_assert_int_eq(unwritable.kind, ERROR_INPUT);
}
END_TEST

/* ---- initial values ---- */

enum { ROWS = 37, COLUMNS = 53, COUNT = ROWS * COLUMNS };

static struct param_info matrix(const char *name)
{
    struct param_info info = { .dims = 2, .shape = { ROWS, COLUMNS } };
    snprintf(info.name, sizeof info.name, "%s", name);
    info.writes_residual = strstr(name, ".wo.") || strstr(name, ".w2.");
    return info;
}

static void initial(struct param_info info, int layers, uint64_t seed, double *ret)
{
    struct model_config model = { .layers = layers };
    memory_poison(ret, COUNT * sizeof *ret);
    param_initial(&info, &model, seed, tensor_2d(ret, FORMAT_FP64, ROWS, COLUMNS));
}

static double deviation(const double *x)
{
    double sum = 0;
    for (int i = 0; i < COUNT; i++)
        sum += x[i] * x[i];
    return sqrt(sum / COUNT);
}

/* Same numbers in fp32 and fp64; the right size; wo and w2 smaller by sqrt(2 x layers). */
START_TEST(test_initial_values)
{
    static double wide[COUNT];
    static float narrow[COUNT];
    const struct { const char *name; double deviation; } cases[] = {
        { "tok_embeddings.weight", 0.02 },           { "layers.3.attention.wq.weight", 0.02 },
        { "layers.3.feed_forward.w3.weight", 0.02 }, { "layers.3.attention.wo.weight", 0.02 / sqrt(14.0) },
        { "output.weight", 0.02 },                   { "layers.3.feed_forward.w2.weight", 0.02 / sqrt(14.0) },
    };
    struct model_config model = { .layers = 7 };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        struct param_info info = matrix(cases[c].name);
        initial(info, 7, 5, wide);
        param_initial(&info, &model, 5, tensor_2d(narrow, FORMAT_FP32, ROWS, COLUMNS));
        for (int i = 0; i < COUNT; i++)
            ck_assert_msg(wide[i] == (double)narrow[i], "%s[%d]", info.name, i);
        ck_assert_msg(fabs(deviation(wide) / cases[c].deviation - 1) < 0.08, "%s: %g", info.name, deviation(wide));
    }
}
END_TEST

/* By seed, name and index only: another name or seed gives other numbers, another shape or layer count the same. */
START_TEST(test_initial_by_name)
{
    static double a[COUNT], b[COUNT];
    initial(matrix("layers.2.attention.wk.weight"), 7, 5, a);
    initial(matrix("layers.2.attention.wk.weight"), 7, 5, b);
    ck_assert_int_eq(memcmp(a, b, sizeof a), 0);
    initial(matrix("layers.2.attention.wk.weight"), 3, 5, b);
    ck_assert_int_eq(memcmp(a, b, sizeof a), 0);
    initial(matrix("layers.1.attention.wk.weight"), 7, 5, b);
    ck_assert_int_ne(memcmp(a, b, sizeof a), 0);
    initial(matrix("layers.2.attention.wk.weight"), 7, 6, b);
    ck_assert_int_ne(memcmp(a, b, sizeof a), 0);

    struct param_info flat = matrix("layers.2.attention.wk.weight");
    struct model_config model = { .layers = 7 };
    flat.dims = 1;
    flat.shape[0] = COUNT;
    param_initial(&flat, &model, 5, tensor_1d(b, FORMAT_FP64, COUNT));
    ck_assert_int_eq(memcmp(a, b, sizeof a), 0);
}
END_TEST

/* Norms begin at one, biases at zero, the biases of wo and w2 too. */
START_TEST(test_initial_norms_and_biases)
{
    static double values[COUNT];
    struct param_info norm = matrix("layers.0.ffn_norm.weight"), bias = matrix("layers.0.attention.wo.bias");
    norm.is_norm = bias.is_bias = true;
    initial(norm, 7, 5, values);
    for (int i = 0; i < COUNT; i++)
        ck_assert(values[i] == 1);
    initial(bias, 7, 5, values);
    for (int i = 0; i < COUNT; i++)
        ck_assert(values[i] == 0 && !signbit(values[i]));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("safetensors");
    TCase *files = tcase_create("files"), *values = tcase_create("initial values");
    tcase_add_checked_fixture(files, setup, teardown);
    tcase_add_loop_test(files, test_malformed_header, 0, MALFORMED);
    tcase_add_test(files, test_malformed_file);
    tcase_add_test(files, test_truncated);
    tcase_add_test(files, test_mutated);
    tcase_add_test(files, test_round_trip);
    tcase_add_test(files, test_empty_file);
    tcase_add_test(files, test_dtypes);
    tcase_add_test(files, test_read_errors);
    tcase_add_test(values, test_initial_values);
    tcase_add_test(values, test_initial_by_name);
    tcase_add_test(values, test_initial_norms_and_biases);
    suite_add_tcase(suite, files);
    suite_add_tcase(suite, values);
    return run_suite(suite, CK_NOFORK);
}
