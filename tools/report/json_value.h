/* json_value: cJSON with numbers as this project writes them: the fewest digits that read back the same,
 * whatever the locale, and "nan", "inf", "-inf" as strings. Needs cJSON_InitHooks with memory_alloc, so
 * that nothing here returns NULL. */
#ifndef TOOLS_REPORT_JSON_VALUE_H
#define TOOLS_REPORT_JSON_VALUE_H

#include <stdbool.h>
#include <stdint.h>
#include <cJSON.h>

void json_add_number(cJSON *object, const char *key, double value);
void json_add_integer(cJSON *object, const char *key, int64_t value);
void json_add_unsigned(cJSON *object, const char *key, uint64_t value);
void json_add_index(cJSON *object, const char *key, int value);        /* null where negative */
void json_add_text(cJSON *object, const char *key, const char *text);  /* null where NULL or "" */
void json_add_bool(cJSON *object, const char *key, bool value);
void json_add_null(cJSON *object, const char *key);
cJSON *json_add_object(cJSON *object, const char *key);
cJSON *json_add_array(cJSON *object, const char *key);
cJSON *json_append_object(cJSON *array);
void json_append_integer(cJSON *array, int64_t value);
void json_append_text(cJSON *array, const char *text);
/* A list of what stands between commas. */
void json_add_list(cJSON *object, const char *key, const char *commas);
/* The object `attention` of a result of that workload (context_json.c). */
struct result;
void json_add_attention(cJSON *root, const struct result *result);
/* The object `denoise` (denoise_text.c). */
void json_add_denoise(cJSON *root, const struct result *result);
/* The whole as text with a newline at its end, and the tree is freed. malloc'd. */
char *json_finish(cJSON *root);

#endif
