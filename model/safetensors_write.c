/* safetensors_write: the writer. Tensors in the order given, header padded with spaces so that the
 * data starts at a multiple of 8 bytes. The same input gives the same bytes. */
#include "model/safetensors.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/arena.h"
#include "sim/assertion.h"

static void json_string(FILE *out, const char *text)
{
    fputc('"', out);
    for (const unsigned char *c = (const unsigned char *)text; *c != '\0'; c++) {
        if (*c == '"' || *c == '\\')
            fprintf(out, "\\%c", *c);
        else if (*c < 0x20)
            fprintf(out, "\\u%04x", *c);
        else
            fputc(*c, out);
    }
    fputc('"', out);
}

static void header_entry(FILE *out, const struct safetensors_entry *entry, int64_t begin)
{
    json_string(out, entry->name);
    fprintf(out, ":{\"dtype\":\"%s\",\"shape\":[", entry->tensor.storage == FORMAT_FP64 ? "F64" : "F32");
    for (int d = 0; d < entry->tensor.dims; d++)
        fprintf(out, "%s%" PRId64, d == 0 ? "" : ",", entry->tensor.shape[d]);
    fprintf(out, "],\"data_offsets\":[%" PRId64 ",%" PRId64 "]}", begin, begin + tensor_bytes(entry->tensor));
}

/* The header with its padding; the caller frees. NULL where memory for it ran out. */
static char *header_text(const struct safetensors_entry *entries, size_t count, const struct safetensors_note *metadata,
                         size_t metadata_count, size_t *ret_length)
{
    char *text = NULL;
    FILE *out = open_memstream(&text, ret_length);
    if (out == NULL)
        return NULL;
    const char *separator = "";
    fputc('{', out);
    if (metadata_count > 0) {
        fputs("\"__metadata__\":{", out);
        for (size_t i = 0; i < metadata_count; i++) {
            fputs(i == 0 ? "" : ",", out);
            json_string(out, metadata[i].key);
            fputc(':', out);
            json_string(out, metadata[i].value);
        }
        fputc('}', out);
        separator = ",";
    }
    int64_t position = 0;
    for (size_t i = 0; i < count; i++) {
        ASSERT(tensor_is_dense(entries[i].tensor) && strcmp(entries[i].name, "__metadata__") != 0);
        fputs(separator, out);
        header_entry(out, &entries[i], position);
        position += tensor_bytes(entries[i].tensor);
        separator = ",";
    }
    fputc('}', out);
    fflush(out);
    for (size_t pad = (8 - *ret_length % 8) % 8; pad > 0; pad--)
        fputc(' ', out);
    bool failed = ferror(out) != 0;
    if (fclose(out) != 0 || failed) {
        free(text);
        return NULL;
    }
    return text;
}

static void number_encode(enum format storage, double value, unsigned char *bytes)
{
    uint64_t bits = 0;
    uint32_t bits32;
    size_t width = format_storage_bytes(storage);
    if (storage == FORMAT_FP64) {
        memcpy(&bits, &value, sizeof bits);
    } else {
        float narrow = (float)value; /* exact: it was stored so */
        memcpy(&bits32, &narrow, sizeof bits32);
        bits = bits32;
    }
    for (size_t i = 0; i < width; i++)
        bytes[i] = (unsigned char)(bits >> (8 * i));
}

static bool tensor_write(FILE *file, struct tensor tensor)
{
    unsigned char buffer[8192];
    size_t width = format_storage_bytes(tensor.storage), chunk = sizeof buffer / width;
    size_t count = (size_t)tensor_count(tensor);
    for (size_t done = 0; done < count;) {
        size_t part = count - done < chunk ? count - done : chunk;
        for (size_t i = 0; i < part; i++)
            number_encode(tensor.storage, format_get(tensor.data, done + i, tensor.storage), buffer + i * width);
        if (fwrite(buffer, width, part, file) != part)
            return false;
        done += part;
    }
    return true;
}

static bool file_write(FILE *file, const char *header, size_t header_length, const struct safetensors_entry *entries,
                       size_t count)
{
    unsigned char prefix[8];
    for (int i = 0; i < 8; i++)
        prefix[i] = (unsigned char)((uint64_t)header_length >> (8 * i));
    if (fwrite(prefix, 1, 8, file) != 8 || fwrite(header, 1, header_length, file) != header_length)
        return false;
    for (size_t i = 0; i < count; i++)
        if (!tensor_write(file, entries[i].tensor))
            return false;
    return fflush(file) == 0;
}

bool safetensors_write(const char *path, const struct safetensors_entry *entries, size_t count,
                       const struct safetensors_note *metadata, size_t metadata_count, struct error *error)
{
    size_t header_length = 0;
    char *header = header_text(entries, count, metadata, metadata_count, &header_length);
    if (header == NULL)
        memory_failed(header_length);
    size_t temporary_size = strlen(path) + sizeof ".tmp";
    char *temporary = memory_alloc(temporary_size);
    snprintf(temporary, temporary_size, "%s.tmp", path);

    FILE *file = fopen(temporary, "wb");
    bool ok = file != NULL;
    if (ok) {
        ok = file_write(file, header, header_length, entries, count);
        int write_errno = errno;
        bool closed = fclose(file) == 0;
        if (!ok)
            errno = write_errno;
        ok = ok && closed && rename(temporary, path) == 0;
    }
    if (!ok) {
        error_input(error, "cannot be written: %s", strerror(errno));
        error_at(error, path, 0, 0, "");
        if (file != NULL)
            remove(temporary);
    }
    free(temporary);
    free(header);
    return ok;
}
