/* json_value: see the header. cJSON only holds the tree and writes it; no number goes through its own printing. */
#include "tools/report/json_value.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "sim/arena.h"
#include "sim/assertion.h"
#include "tools/report/number.h"

static cJSON *made(cJSON *value)
{
    if (!value) memory_failed(sizeof *value);
    return value;
}

static void add(cJSON *object, const char *key, cJSON *value)
{
    if (!cJSON_AddItemToObject(object, key, made(value))) memory_failed(strlen(key) + 1);
}

void json_add_number(cJSON *object, const char *key, double value)
{
    char text[NUMBER_TEXT];
    number_shortest(value, text);
    add(object, key, isfinite(value) ? cJSON_CreateRaw(text) : cJSON_CreateString(text));
}

void json_add_integer(cJSON *object, const char *key, int64_t value)
{
    char text[NUMBER_TEXT];
    snprintf(text, sizeof text, "%" PRId64, value);
    add(object, key, cJSON_CreateRaw(text));
}

void json_add_unsigned(cJSON *object, const char *key, uint64_t value)
{
    char text[NUMBER_TEXT];
    snprintf(text, sizeof text, "%" PRIu64, value);
    add(object, key, cJSON_CreateRaw(text));
}

void json_add_index(cJSON *object, const char *key, int value)
{
    if (value < 0) json_add_null(object, key);
    else json_add_integer(object, key, value);
}

void json_add_text(cJSON *object, const char *key, const char *text)
{
    add(object, key, text && *text ? cJSON_CreateString(text) : cJSON_CreateNull());
}

void json_add_bool(cJSON *object, const char *key, bool value)
{
    add(object, key, cJSON_CreateBool(value));
}

void json_add_null(cJSON *object, const char *key)
{
    add(object, key, cJSON_CreateNull());
}

cJSON *json_add_object(cJSON *object, const char *key)
{
    cJSON *value = made(cJSON_CreateObject());
    add(object, key, value);
    return value;
}

cJSON *json_add_array(cJSON *object, const char *key)
{
    cJSON *value = made(cJSON_CreateArray());
    add(object, key, value);
    return value;
}

cJSON *json_append_object(cJSON *array)
{
    cJSON *value = made(cJSON_CreateObject());
    cJSON_AddItemToArray(array, value);
    return value;
}

void json_append_integer(cJSON *array, int64_t value)
{
    char text[NUMBER_TEXT];
    snprintf(text, sizeof text, "%" PRId64, value);
    cJSON_AddItemToArray(array, made(cJSON_CreateRaw(text)));
}

void json_add_list(cJSON *object, const char *key, const char *commas)
{
    cJSON *list = json_add_array(object, key);
    while (*commas) {
        size_t blanks = strspn(commas, " ,"), length = strcspn(commas += blanks, ",");
        if (length == 0) break;
        char item[128];
        snprintf(item, sizeof item, "%.*s", (int)length, commas);
        cJSON_AddItemToArray(list, made(cJSON_CreateString(item)));
        commas += length;
    }
}

char *json_finish(cJSON *root)
{
    char *text = cJSON_Print(root);
    if (!text) memory_failed(1);
    cJSON_Delete(root);
    size_t length = strlen(text);
    text = memory_realloc(text, length + 2);
    memcpy(text + length, "\n", 2);
    return text;
}
