/* safetensors: reading and writing tensor files in the safetensors format (Hugging Face).
 *
 * A file is: 8 bytes, the header's length N, little-endian; N bytes of JSON,
 *   {"__metadata__": {"key": "value", ...},
 *    "name": {"dtype": "F32", "shape": [3, 5], "data_offsets": [begin, end]}, ...}
 * padded with spaces; then the tensors' bytes back to back, row-major, little-endian, offsets counted
 * from the end of the header. Supported: F64, F32, BF16, F16. Anything malformed is an input error
 * that names the file, the tensor and what is wrong; nothing is read that was not checked. */
#ifndef MODEL_SAFETENSORS_H
#define MODEL_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "sim/error.h"
#include "sim/tensor.h"

enum { SAFETENSORS_DIMS_MAX = 8 };

struct safetensors;

/* Reads and checks the header; the file stays open. NULL and an error where it is malformed. */
struct safetensors *safetensors_open(const char *path, struct error *error);
void safetensors_close(struct safetensors *st); /* accepts NULL */

/* The tensors, in the order of their data. Strings and shapes live until safetensors_close. */
size_t safetensors_count(const struct safetensors *st);
const char *safetensors_name(const struct safetensors *st, size_t i);
enum format safetensors_dtype(const struct safetensors *st, size_t i);
int safetensors_shape(const struct safetensors *st, size_t i, const int64_t **ret_shape); /* dims; 0 for a scalar */
bool safetensors_find(const struct safetensors *st, const char *name, size_t *ret_i);
const char *safetensors_metadata(const struct safetensors *st, const char *key); /* NULL where there is none */

/* The tensor `name` into `into` (dense, as many elements), converted to its storage by rounding to
 * nearest. An error where the file does not have it or has another shape than [shape[0..dims)]. */
bool safetensors_read(struct safetensors *st, const char *name, int dims, const int64_t *shape, struct tensor into,
                      struct error *error);

struct safetensors_entry { const char *name; struct tensor tensor; }; /* dense; written as F64 or F32, its storage */
struct safetensors_note { const char *key, *value; };

/* Writes path.tmp and renames it to path: readers see the old file or the whole new one. On an error
 * path is as it was. Names are unique and none is "__metadata__". */
bool safetensors_write(const char *path, const struct safetensors_entry *entries, size_t count,
                       const struct safetensors_note *metadata, size_t metadata_count, struct error *error);

#endif
