/* safetensors: the reader. The format is in safetensors.h; the writer in safetensors_write.c.
 *
 * Checked before anything is believed: the header's length against the file and the format's limit,
 * the JSON and what cJSON lets pass (duplicate keys, NUL in strings, text after the end), each
 * tensor's dtype, shape and byte count, and that the tensors cover the data exactly: no overlap, no
 * hole, nothing past the end. */
#include "model/safetensors.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cJSON.h>

#include "sim/arena.h"
#include "sim/assertion.h"

#define HEADER_BYTES_MAX UINT64_C(100000000)  /* the format's own limit */
#define INTEGER_MAX 9007199254740992.0        /* 2^53: cJSON keeps numbers as doubles */
#define METADATA_KEY "__metadata__"

struct entry {
    const char *name;
    enum format dtype;
    int dims;
    int64_t shape[SAFETENSORS_DIMS_MAX], count;
    int64_t begin, end;     /* bytes from data_start */
};

struct safetensors {
    char *path;
    FILE *file;
    cJSON *header;          /* owns the names */
    const cJSON *metadata;  /* or NULL */
    int64_t data_start, data_bytes;
    size_t count;
    struct entry *entries;  /* by position of the data */
    struct entry **by_name;
};

/* Formats of eight bits are not read. */
static const struct { const char *name; int bytes; } dtypes[FORMAT_COUNT] = {
    [FORMAT_FP64] = { "F64", 8 },
    [FORMAT_FP32] = { "F32", 4 },
    [FORMAT_BF16] = { "BF16", 2 },
    [FORMAT_FP16] = { "F16", 2 },
};

/* "name: what is wrong" about this file; false as all error functions. name may be NULL. */
static bool fail(const struct safetensors *st, const char *name, struct error *error, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

static bool fail(const struct safetensors *st, const char *name, struct error *error, const char *format, ...)
{
    char message[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    error_input(error, "%s", message);
    error_at(error, st->path, 0, 0, name == NULL ? "" : name);
    return false;
}

static const char *read_problem(const struct safetensors *st)
{
    return ferror(st->file) ? strerror(errno) : "end of file";
}

/* ---- the header's text ---- */

/* What cJSON would let pass: control characters, and \u0000, which would cut a name short. */
static bool header_text_is_clean(const char *text, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c < 0x20 && c != '\t' && c != '\n' && c != '\r')
            return false;
        if (c == '\\') {
            if (length - i >= 6 && memcmp(text + i, "\\u0000", 6) == 0)
                return false;
            i++; /* the escaped character, which may be a backslash */
        }
    }
    return true;
}

static bool header_parse(struct safetensors *st, const char *text, size_t length, struct error *error)
{
    if (length == 0 || text[0] != '{')
        return fail(st, NULL, error, "header does not begin with '{'");
    if (!header_text_is_clean(text, length))
        return fail(st, NULL, error, "header contains a NUL or another control character");
    const char *end = NULL;
    st->header = cJSON_ParseWithLengthOpts(text, length, &end, false);
    if (st->header == NULL)
        return fail(st, NULL, error, "header is not valid JSON (near byte %zu)",
                    end == NULL ? 8 : (size_t)(end - text) + 8);
    while (end < text + length && strchr(" \t\r\n", *end) != NULL)
        end++;
    if (end != text + length)
        return fail(st, NULL, error, "text after the end of the header's JSON (at byte %zu)", (size_t)(end - text) + 8);
    return true;
}

/* Reads the eight bytes of length and the header, and fills header, data_start and data_bytes. */
static bool header_read(struct safetensors *st, struct error *error)
{
    struct stat status;
    if (stat(st->path, &status) != 0)
        return fail(st, NULL, error, "cannot be opened: %s", strerror(errno));
    if (!S_ISREG(status.st_mode))
        return fail(st, NULL, error, "is not a regular file");
    st->file = fopen(st->path, "rb");
    if (st->file == NULL)
        return fail(st, NULL, error, "cannot be opened: %s", strerror(errno));

    uint64_t file_bytes = (uint64_t)status.st_size, length = 0;
    unsigned char prefix[8];
    if (file_bytes < sizeof prefix || fread(prefix, 1, sizeof prefix, st->file) != sizeof prefix)
        return fail(st, NULL, error, "is truncated: %" PRIu64 " bytes, the header's length alone takes 8", file_bytes);
    for (int i = 7; i >= 0; i--)
        length = length << 8 | prefix[i];
    if (length > HEADER_BYTES_MAX)
        return fail(st, NULL, error, "header of %" PRIu64 " bytes, at most %" PRIu64 " are allowed", length,
                    HEADER_BYTES_MAX);
    if (length > file_bytes - sizeof prefix)
        return fail(st, NULL, error, "is truncated: header of %" PRIu64 " bytes in a file of %" PRIu64, length,
                    file_bytes);

    char *text = memory_alloc((size_t)length + 1);
    text[length] = '\0';
    bool ok = fread(text, 1, (size_t)length, st->file) == (size_t)length
                  ? header_parse(st, text, (size_t)length, error)
                  : fail(st, NULL, error, "header cannot be read: %s", read_problem(st));
    free(text);
    st->data_start = (int64_t)(sizeof prefix + length);
    st->data_bytes = (int64_t)file_bytes - st->data_start;
    return ok;
}

/* ---- the header's contents ---- */

static int compare_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Every key of the object once. cJSON keeps duplicates; which of them another reader takes is its own choice. */
static bool keys_unique(const struct safetensors *st, const cJSON *object, struct error *error)
{
    size_t count = 0;
    const cJSON *item;
    cJSON_ArrayForEach(item, object) count++;
    const char **keys = memory_alloc((count + 1) * sizeof *keys);
    count = 0;
    cJSON_ArrayForEach(item, object) keys[count++] = item->string;
    qsort(keys, count, sizeof *keys, compare_text);
    bool ok = true;
    for (size_t i = 1; i < count && ok; i++)
        if (strcmp(keys[i - 1], keys[i]) == 0)
            ok = fail(st, keys[i], error, "name appears more than once in the header");
    free(keys);
    return ok;
}

static bool metadata_check(struct safetensors *st, const cJSON *item, struct error *error)
{
    if (!cJSON_IsObject(item))
        return fail(st, METADATA_KEY, error, "is not an object");
    const cJSON *note;
    cJSON_ArrayForEach(note, item)
        if (!cJSON_IsString(note))
            return fail(st, METADATA_KEY, error, "value of \"%.100s\" is not a string", note->string);
    st->metadata = item;
    return keys_unique(st, item, error);
}

/* A list of integers in [0, 2^53] into ret; its length, or -1. */
static int integers_get(const cJSON *list, int64_t *ret, int max)
{
    int count = 0;
    if (!cJSON_IsArray(list))
        return -1;
    const cJSON *item;
    cJSON_ArrayForEach(item, list) {
        double value = item->valuedouble;
        if (count == max || !cJSON_IsNumber(item) || !(value >= 0 && value <= INTEGER_MAX) || value != floor(value))
            return -1;
        ret[count++] = (int64_t)value;
    }
    return count;
}

static bool dtype_parse(const char *name, enum format *ret_dtype)
{
    for (int i = 0; i < FORMAT_COUNT; i++)
        if (dtypes[i].name && strcmp(name, dtypes[i].name) == 0) {
            *ret_dtype = (enum format)i;
            return true;
        }
    return false;
}

/* The offsets lie in the file and span what shape and dtype take. */
static bool entry_check(const struct safetensors *st, struct entry *entry, struct error *error)
{
    if (entry->begin > entry->end)
        return fail(st, entry->name, error, "data_offsets begin at %" PRId64 " after their end %" PRId64,
                    entry->begin, entry->end);
    if (entry->end > st->data_bytes)
        return fail(st, entry->name, error, "data_offsets end at %" PRId64 ", the file has %" PRId64 " bytes of data",
                    entry->end, st->data_bytes);
    int64_t bytes;
    bool overflow = false;
    entry->count = 1;
    for (int d = 0; d < entry->dims; d++)
        overflow |= __builtin_mul_overflow(entry->count, entry->shape[d], &entry->count);
    overflow |= __builtin_mul_overflow(entry->count, (int64_t)dtypes[entry->dtype].bytes, &bytes);
    if (overflow)
        return fail(st, entry->name, error, "shape has more elements than can be counted");
    if (bytes != entry->end - entry->begin)
        return fail(st, entry->name, error, "shape and dtype take %" PRId64 " bytes, data_offsets span %" PRId64,
                    bytes, entry->end - entry->begin);
    return true;
}

static bool entry_parse(const struct safetensors *st, const cJSON *item, struct entry *entry, struct error *error)
{
    const cJSON *dtype = cJSON_GetObjectItemCaseSensitive(item, "dtype");
    const cJSON *shape = cJSON_GetObjectItemCaseSensitive(item, "shape");
    const cJSON *offsets = cJSON_GetObjectItemCaseSensitive(item, "data_offsets");
    entry->name = item->string;

    if (!cJSON_IsObject(item) || dtype == NULL || shape == NULL || offsets == NULL || cJSON_GetArraySize(item) != 3)
        return fail(st, entry->name, error,
                    "is not an object with dtype, shape and data_offsets, each once, and nothing else");
    if (!cJSON_IsString(dtype))
        return fail(st, entry->name, error, "dtype is not a string");
    if (!dtype_parse(dtype->valuestring, &entry->dtype))
        return fail(st, entry->name, error, "dtype \"%.40s\" is not supported, allowed: F64, F32, BF16, F16",
                    dtype->valuestring);
    entry->dims = integers_get(shape, entry->shape, SAFETENSORS_DIMS_MAX);
    if (entry->dims < 0)
        return fail(st, entry->name, error, "shape is not a list of at most %d non-negative integers",
                    SAFETENSORS_DIMS_MAX);
    int64_t span[2];
    if (integers_get(offsets, span, 2) != 2)
        return fail(st, entry->name, error, "data_offsets is not a list of two non-negative integers");
    entry->begin = span[0];
    entry->end = span[1];
    return entry_check(st, entry, error);
}

static int compare_position(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end)
        return x->end < y->end ? -1 : 1;
    return strcmp(x->name, y->name);
}

static int compare_name(const void *a, const void *b)
{
    return strcmp((*(struct entry *const *)a)->name, (*(struct entry *const *)b)->name);
}

static bool entries_cover_data(const struct safetensors *st, struct error *error)
{
    int64_t position = 0;
    for (size_t i = 0; i < st->count; i++) {
        const struct entry *entry = &st->entries[i];
        if (entry->begin < position)
            return fail(st, entry->name, error, "data overlaps that of \"%.100s\"", st->entries[i - 1].name);
        if (entry->begin > position)
            return fail(st, entry->name, error, "%" PRId64 " bytes before its data belong to no tensor",
                        entry->begin - position);
        position = entry->end;
    }
    if (position != st->data_bytes)
        return fail(st, NULL, error, "%" PRId64 " bytes at the end belong to no tensor", st->data_bytes - position);
    return true;
}

static bool header_check(struct safetensors *st, struct error *error)
{
    if (!keys_unique(st, st->header, error))
        return false;
    size_t size = (size_t)cJSON_GetArraySize(st->header);
    st->entries = memory_zalloc((size + 1) * sizeof *st->entries);
    st->by_name = memory_zalloc((size + 1) * sizeof *st->by_name);
    const cJSON *item;
    cJSON_ArrayForEach(item, st->header) {
        if (strcmp(item->string, METADATA_KEY) == 0) {
            if (!metadata_check(st, item, error))
                return false;
        } else if (!entry_parse(st, item, &st->entries[st->count++], error)) {
            return false;
        }
    }
    qsort(st->entries, st->count, sizeof *st->entries, compare_position);
    for (size_t i = 0; i < st->count; i++)
        st->by_name[i] = &st->entries[i];
    qsort(st->by_name, st->count, sizeof(struct entry *), compare_name);
    return entries_cover_data(st, error);
}

struct safetensors *safetensors_open(const char *path, struct error *error)
{
    struct safetensors *st = memory_zalloc(sizeof *st);
    st->path = memory_strdup(path);
    if (header_read(st, error) && header_check(st, error))
        return st;
    safetensors_close(st);
    return NULL;
}

void safetensors_close(struct safetensors *st)
{
    if (st == NULL)
        return;
    if (st->file != NULL)
        fclose(st->file);
    cJSON_Delete(st->header);
    free(st->by_name);
    free(st->entries);
    free(st->path);
    free(st);
}

/* ---- what is in the file ---- */

size_t safetensors_count(const struct safetensors *st)
{
    return st->count;
}

const char *safetensors_name(const struct safetensors *st, size_t i)
{
    ASSERT(i < st->count);
    return st->entries[i].name;
}

enum format safetensors_dtype(const struct safetensors *st, size_t i)
{
    ASSERT(i < st->count);
    return st->entries[i].dtype;
}

int safetensors_shape(const struct safetensors *st, size_t i, const int64_t **ret_shape)
{
    ASSERT(i < st->count);
    *ret_shape = st->entries[i].shape;
    return st->entries[i].dims;
}

bool safetensors_find(const struct safetensors *st, const char *name, size_t *ret_i)
{
    struct entry key = { .name = name }, *key_pointer = &key;
    struct entry *const *found = bsearch(&key_pointer, st->by_name, st->count, sizeof(struct entry *), compare_name);
    if (found != NULL)
        *ret_i = (size_t)(*found - st->entries);
    return found != NULL;
}

const char *safetensors_metadata(const struct safetensors *st, const char *key)
{
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(st->metadata, key));
}

/* ---- the numbers ---- */

static double number_decode(enum format dtype, const unsigned char *bytes)
{
    uint64_t bits = 0;
    for (int i = dtypes[dtype].bytes - 1; i >= 0; i--)
        bits = bits << 8 | bytes[i];
    if (dtype == FORMAT_FP64) {
        double value;
        memcpy(&value, &bits, sizeof value);
        return value;
    }
    if (dtype == FORMAT_FP16) {
        double sign = bits >> 15 != 0 ? -1.0 : 1.0, fraction = (double)(bits & 0x3ff);
        int exponent = (int)(bits >> 10 & 0x1f);
        if (exponent == 0x1f)
            return fraction != 0.0 ? (double)NAN : sign * (double)INFINITY;
        return sign * (exponent == 0 ? ldexp(fraction, -24) : ldexp(fraction + 1024.0, exponent - 25));
    }
    uint32_t bits32 = (uint32_t)(dtype == FORMAT_BF16 ? bits << 16 : bits);
    float value;
    memcpy(&value, &bits32, sizeof value);
    return (double)value;
}

static void shape_text(int dims, const int64_t *shape, char text[256])
{
    size_t used = (size_t)snprintf(text, 256, "[");
    for (int d = 0; d < dims && used < 200; d++)
        used += (size_t)snprintf(text + used, 256 - used, "%s%" PRId64, d == 0 ? "" : ", ", shape[d]);
    snprintf(text + used, 256 - used, "]");
}

bool safetensors_read(struct safetensors *st, const char *name, int dims, const int64_t *shape, struct tensor into,
                      struct error *error)
{
    size_t index;
    if (!safetensors_find(st, name, &index))
        return fail(st, name, error, "the file has no tensor of this name");
    const struct entry *entry = &st->entries[index];
    bool same = entry->dims == dims;
    for (int d = 0; d < dims && same; d++)
        same = entry->shape[d] == shape[d];
    if (!same) {
        char found[256], expected[256];
        shape_text(entry->dims, entry->shape, found);
        shape_text(dims, shape, expected);
        return fail(st, name, error, "shape is %s, expected %s", found, expected);
    }
    ASSERT(tensor_is_dense(into) && tensor_count(into) == entry->count);

    unsigned char buffer[8192];
    size_t width = (size_t)dtypes[entry->dtype].bytes, chunk = sizeof buffer / width;
    if (fseeko(st->file, st->data_start + entry->begin, SEEK_SET) != 0)
        return fail(st, name, error, "cannot be read: %s", strerror(errno));
    for (size_t done = 0, count = (size_t)entry->count; done < count;) {
        size_t part = count - done < chunk ? count - done : chunk;
        if (fread(buffer, width, part, st->file) != part)
            return fail(st, name, error, "cannot be read: %s", read_problem(st));
        for (size_t i = 0; i < part; i++)
            format_set(into.data, done + i, into.storage, number_decode(entry->dtype, buffer + i * width));
        done += part;
    }
    return true;
}
