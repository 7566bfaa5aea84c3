/* json_value: see the header. cJSON holds the tree and escapes texts; no number goes through its own printing. */
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

void json_append_text(cJSON *array, const char *text)
{
    cJSON_AddItemToArray(array, made(cJSON_CreateString(text)));
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

/* ---- writing: two blanks a level; a list or object that holds no other one stays on a line if it fits ---- */

enum { LINE_WIDTH = 118, INDENT = 2 };

/* Wholly on one line; its length. file NULL: only counts. */
static size_t write_flat(FILE *file, const cJSON *value)
{
    bool object = cJSON_IsObject(value);
    if (!object && !cJSON_IsArray(value)) {
        char *text = cJSON_PrintUnformatted(value);
        if (!text) memory_failed(1);
        size_t length = strlen(text);
        if (file) fputs(text, file);
        free(text);
        return length;
    }
    size_t length = 2;
    if (file) fputc(object ? '{' : '[', file);
    for (const cJSON *child = value->child; child; child = child->next) {
        if (object) length += strlen(child->string) + 4;
        if (file && object) fprintf(file, "\"%s\": ", child->string); /* keys are this program's own words */
        length += write_flat(file, child);
        if (child->next) length += 2;
        if (file && child->next) fputs(", ", file);
    }
    if (file) fputc(object ? '}' : ']', file);
    return length;
}

static bool stays_flat(const cJSON *value, size_t column)
{
    for (const cJSON *child = value->child; child; child = child->next) {
        if (child->child) return false;
    }
    return column + write_flat(NULL, value) <= LINE_WIDTH;
}

static void write_value(FILE *file, const cJSON *value, size_t indent, size_t column)
{
    bool object = cJSON_IsObject(value);
    if (!value->child || stays_flat(value, column)) {
        write_flat(file, value);
        return;
    }
    fputs(object ? "{\n" : "[\n", file);
    for (const cJSON *child = value->child; child; child = child->next) {
        size_t start = indent + INDENT;
        fprintf(file, "%*s", (int)start, "");
        if (object) start += (size_t)fprintf(file, "\"%s\": ", child->string);
        write_value(file, child, indent + INDENT, start);
        fputs(child->next ? ",\n" : "\n", file);
    }
    fprintf(file, "%*s%c", (int)indent, "", object ? '}' : ']');
}

char *json_finish(cJSON *root)
{
    char *text = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&text, &size);
    if (!file) memory_failed(1);
    write_value(file, root, 0, 0);
    fputc('\n', file);
    if (fclose(file) != 0) memory_failed(size);
    cJSON_Delete(root);
    return text;
}
