/* test_json_strict: exactly RFC 8259's texts pass, each refusal names line, column and key path, and the map knows
 * every key's and value's place. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "scenarios/json_strict.h"
#include "scenarios/spelling.h"
#include "tests/support/run_suite.h"

struct refused { const char *text; int bytes /* 0: to the NUL */, line, column; const char *path, *words; };

static const struct refused refusals[] = {
    {"", 0, 1, 1, "", "'{' expected, found the end"},
    {" \n\t", 0, 2, 2, "", "'{' expected"},
    {"[1]", 0, 1, 1, "", "'{' expected, found '['"},
    {"7", 0, 1, 1, "", "'{' expected"},
    {"{", 0, 1, 2, "", "a key in double quotes expected, found the end"},
    {"{\"a\"", 0, 1, 5, "a", "':' behind a key"},
    {"{\"a\":", 0, 1, 6, "a", "a value expected"},
    {"{\"a\":}", 0, 1, 6, "a", "a value expected, found '}'"},
    {"{\"a\":1", 0, 1, 7, "", "',' or '}'"},
    {"{\"a\":1 \"b\":2}", 0, 1, 8, "", "',' or '}'"},
    {"{\"a\":[1 2]}", 0, 1, 9, "a", "',' or ']'"},
    {"{\"a\":[1,\n2", 0, 2, 2, "a", "',' or ']'"},
    {"{\"a\":1,}", 0, 1, 7, "", "a comma before '}'"},
    {"{\"a\":[1,\n ]}", 0, 1, 8, "a", "a comma before ']'"},
    {"{,}", 0, 1, 2, "", "a key in double quotes"},
    {"{a:1}", 0, 1, 2, "", "a key in double quotes"},
    {"{'a':1}", 0, 1, 2, "", "a key in double quotes"},
    {"{1:1}", 0, 1, 2, "", "a key in double quotes"},
    {"{} {}", 0, 1, 4, "", "nothing more"},
    {"{}x", 0, 1, 3, "", "nothing more"},
    {"{\n}\n\n  ]", 0, 4, 3, "", "nothing more"},
    {"{\"a\":1 // x\n}", 0, 1, 8, "", "',' or '}'"},
    {"/* x */{}", 0, 1, 1, "", "'{' expected, found '/'"},
    {"{\"a\":1,\n\"b\":{\"c\":2},\n \"a\":3}", 0, 3, 2, "a", "key 'a' is given twice; the first is in line 1"},
    {"{\"x\":{\"ab\":1,\n \"\\u0061b\":2}}", 0, 2, 2, "x.ab", "given twice"},
    {"{\"a\":01}", 0, 1, 6, "a", "no leading zero"},
    {"{\"a\":-012}", 0, 1, 6, "a", "no leading zero"},
    {"{\"a\":+1}", 0, 1, 6, "a", "a value expected, found '+'"},
    {"{\"a\":.5}", 0, 1, 6, "a", "a value expected, found '.'"},
    {"{\"a\":1.}", 0, 1, 8, "a", "a digit behind the decimal point"},
    {"{\"a\":-}", 0, 1, 7, "a", "a digit behind '-'"},
    {"{\"a\":1e}", 0, 1, 8, "a", "a digit of the exponent"},
    {"{\"a\":1e+}", 0, 1, 9, "a", "a digit of the exponent"},
    {"{\"a\":0x10}", 0, 1, 7, "", "',' or '}'"},
    {"{\"a\":1e999}", 0, 1, 6, "a", "1e999 is too large"},
    {"{\"a\":-1e309}", 0, 1, 6, "a", "too large"},
    {"{\"a\":1e-999}", 0, 1, 6, "a", "1e-999 is too small"},
    {"{\"a\":0.0000000000000000000000000000000000000000000000000000000001}", 0, 0, 0, NULL, NULL},
    {"{\"a\":1.0000000000000000000000000000000000000000000000000000000001}", 0, 0, 0, NULL, NULL},
    {"{\"a\":1.00000000000000000000000000000000000000000000000000000000001}", 0, 1, 6, "a", "a number of 61 characters"},
    {"{\"a\":NaN}", 0, 1, 6, "a", "'NaN' is not a JSON value"},
    {"{\"a\":-Infinity}", 0, 1, 7, "a", "a digit behind '-'"},
    {"{\"a\":Infinity}", 0, 1, 6, "a", "'Infinity' is not a JSON value"},
    {"{\"a\":True}", 0, 1, 6, "a", "'True' is not a JSON value"},
    {"{\"a\":nul}", 0, 1, 6, "a", "'nul' is not a JSON value"},
    {"{\"a\":truefalse}", 0, 1, 6, "a", "'truefalse' is not"},
    {"{\"a\":\"x}", 0, 1, 6, "a", "no closing quote"},
    {"{\"a\":\"x\n\"}", 0, 1, 6, "a", "no closing quote on its line"},
    {"{\"a\":\"x\ty\"}", 0, 1, 8, "a", "control character 9"},
    {"{\"a\":\"\x01\"}", 0, 1, 7, "a", "\\u0001"},
    {"{\"a\":\"\\x\"}", 0, 1, 8, "a", "behind \\"},
    {"{\"a\":\"\\", 0, 1, 8, "a", "behind \\"},
    {"{\"a\":\"\\u12g4\"}", 0, 1, 11, "a", "hexadecimal digit"},
    {"{\"a\":\"\\u0000\"}", 0, 1, 7, "a", "\\u0000 is not allowed"},
    {"{\"a\\u0000b\":1}", 0, 1, 4, "", "\\u0000 is not allowed"},
    {"{\"a\":\"\\ud800\"}", 0, 1, 7, "a", "high surrogate"},
    {"{\"a\":\"\\ud800\\n\"}", 0, 1, 7, "a", "high surrogate"},
    {"{\"a\":\"\\ud800\\ud800\"}", 0, 1, 7, "a", "high surrogate"},
    {"{\"a\":\"\\udc00\"}", 0, 1, 7, "a", "low surrogate"},
    {"{\"a\":\"\xff\"}", 0, 1, 7, "", "byte 0xff is not UTF-8"},
    {"{\"\xc3\xa9\":\"\xc3\"}", 0, 1, 7, "", "byte 0xc3 is not UTF-8"},
    {"{\"a\":\"\xc0\x80\"}", 0, 1, 7, "", "byte 0xc0"},
    {"{\"a\":\"\xe0\x80\x80\"}", 0, 1, 7, "", "byte 0xe0"},
    {"{\"a\":\"\xed\xa0\x80\"}", 0, 1, 7, "", "byte 0xed"},
    {"{\"a\":\"\xf0\x80\x80\x80\"}", 0, 1, 7, "", "byte 0xf0"},
    {"{\"a\":\"\xf4\x90\x80\x80\"}", 0, 1, 7, "", "byte 0xf4"},
    {"{\"a\":\"\xf5\x80\x80\x80\"}", 0, 1, 7, "", "byte 0xf5"},
    {"{\n\"\xc3\xa9\xc3\xa9\":\xc3\xa9}", 0, 2, 6, "\xc3\xa9\xc3\xa9", "outside ASCII"},
    {"\xef\xbb\xbf{}", 0, 1, 1, "", "byte-order mark"},
    {"\xff\xfe{\0}\0", 6, 1, 1, "", "byte 0xff"},
    {"{\0}", 3, 1, 2, "", "NUL byte"},
    {"{\"a\":\"x\0y\"}", 11, 1, 8, "", "NUL byte"},
    {"{}\0", 3, 1, 3, "", "NUL byte"},
    {"{\"f\":[{},{\"at\":{\"step\":[3,x]}}]}", 0, 1, 27, "f[1].at.step[1]", "'x' is not a JSON value"},
};

/* Each refusal of the table says where and what; a row without words is accepted. */
START_TEST(refuses)
{
    const struct refused *r = &refusals[_i];
    struct error error = {0};
    struct json_map *map = json_strict(r->text, r->bytes ? (size_t)r->bytes : strlen(r->text), true, &error);
    if (!r->words) {
        ck_assert_msg(map, "refused: %s: %s", r->text, error.message);
        json_map_free(map);
        return;
    }
    ck_assert_msg(!map, "accepted: %s", r->text);
    ck_assert_int_eq(error.kind, ERROR_INPUT);
    ck_assert_msg(strstr(error.message, r->words) != NULL, "%s: '%s' lacks '%s'", r->text, error.message, r->words);
    ck_assert_msg(error.line == r->line && error.column == r->column, "%s: %d:%d", r->text, error.line, error.column);
    ck_assert_str_eq(error.path, r->path);
}
END_TEST

/* Everything that the grammar allows passes, and scalars alone where any value may stand. */
START_TEST(accepts)
{
    static const char *const texts[] = {
        "{}", " \t\r\n{ \n} \n", "{\"a\":0,\"b\":-0,\"c\":1.50,\"d\":-2e+3,\"e\":3E-2,\"f\":0e5,\"g\":0.0e-999}",
        "{\"a\":[],\"b\":[[],[{}]],\"c\":true,\"d\":false,\"e\":null}",
        "{\"\":1,\"a\\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e9\\ud83d\\ude00\":\"\xf0\x9f\x98\x80 \x7f\"}",
        "{\"a\":{\"a\":{\"a\":1}},\"A\":2}", "{\"a\":1.7976931348623157e308,\"b\":4.9e-324}",
    };
    static const char *const values[] = {"1", "\"x\"", "null", "[1,2]", " true "};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct error error = {0};
        struct json_map *map = json_strict(texts[i], strlen(texts[i]), true, &error);
        ck_assert_msg(map, "%s: %s", texts[i], error.message);
        json_map_free(map);
    }
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        struct error error = {0};
        struct json_map *map = json_strict(values[i], strlen(values[i]), false, &error);
        ck_assert_msg(map, "%s: %s", values[i], error.message);
        json_map_free(map);
    }
}
END_TEST

/* n lists within each other, in one key. */
static bool nested(int depth, struct error *ret_error)
{
    char text[512] = "{\"a\":";
    size_t used = strlen(text);
    memset(text + used, '[', (size_t)depth);
    memset(text + used + depth, ']', (size_t)depth);
    strcpy(text + used + 2 * depth, "}");
    *ret_error = (struct error){0};
    struct json_map *map = json_strict(text, strlen(text), true, ret_error);
    json_map_free(map);
    return map != NULL;
}

/* 64 levels are allowed, 65 are not; nor are more values than the limit. */
START_TEST(limits)
{
    struct error error;
    ck_assert(nested(JSON_DEPTH_MAX - 1, &error));
    ck_assert(!nested(JSON_DEPTH_MAX, &error));
    ck_assert_ptr_nonnull(strstr(error.message, "deeper than 64"));
    ck_assert_int_eq(error.column, 5 + JSON_DEPTH_MAX);

    size_t bytes = 2 * JSON_VALUES_MAX + 10, used = 6;
    char *text = malloc(bytes + 10);
    memcpy(text, "{\"a\":[", used);
    while (used < bytes) {
        text[used++] = '7';
        text[used++] = ',';
    }
    strcpy(text + used - 1, "]}");
    error = (struct error){0};
    ck_assert_ptr_null(json_strict(text, strlen(text), true, &error));
    ck_assert_ptr_nonnull(strstr(error.message, "more than 100000 values"));
    free(text);
}
END_TEST

static void expect_place(const struct json_map *map, const char *path, bool exact_expected, int key_column, int line, int column)
{
    bool exact = false;
    int node = json_map_find(map, path, &exact);
    ck_assert_msg(node >= 0 && exact == exact_expected, "%s", path);
    struct json_place key = json_map_key_place(map, node), value = json_map_value_place(map, node);
    ck_assert_msg(key.column == key_column && value.line == line && value.column == column, "%s: key column %d, value %d:%d", path,
                  key.column, value.line, value.column);
}

/* Keys and values are found by path, columns counted in characters; a path that is not there finds what is above. */
START_TEST(places)
{
    static const char text[] = "{\n  \"a\": {\"\xc3\xa9\": \"\xc3\xa9\", \"b\" :  7},\n  \"list\": [1, {\"c\": [[5]]}]}";
    struct error error = {0};
    struct json_map *map = json_strict(text, strlen(text), true, &error);
    ck_assert_ptr_nonnull(map);
    expect_place(map, "", true, 1, 1, 1);
    expect_place(map, "a", true, 3, 2, 8);
    expect_place(map, "a.\xc3\xa9", true, 9, 2, 14);
    expect_place(map, "a.b", true, 19, 2, 26);
    expect_place(map, "list[0]", true, 12, 3, 12);
    expect_place(map, "list[1].c", true, 16, 3, 21);
    expect_place(map, "list[1].c[0][0]", true, 23, 3, 23);
    expect_place(map, "a.b.c", false, 19, 2, 26);
    expect_place(map, "list[7].c", false, 3, 3, 11);
    expect_place(map, "nothing", false, 1, 1, 1);
    char path[64];
    json_map_path(map, json_map_count(map) - 1, path, sizeof path);
    ck_assert_str_eq(path, "list[1].c[0][0]");
    json_map_path(map, json_map_count(map) - 1, path, 6);
    ck_assert_str_eq(path, "list[");
    json_map_free(map);
}
END_TEST

/* Duplicates are found among thousands of keys, and thousands of different ones are fine. */
START_TEST(many_keys)
{
    enum { KEYS = 9001 };
    char *text = malloc(KEYS * 16);
    size_t used = 0;
    for (int i = 0; i < KEYS; i++) used += (size_t)sprintf(text + used, "%c\"k%d\":%d", i ? ',' : '{', i, i);
    strcpy(text + used, "}");
    struct error error = {0};
    struct json_map *map = json_strict(text, strlen(text), true, &error);
    ck_assert_ptr_nonnull(map);
    ck_assert_int_eq(json_map_count(map), KEYS + 1);
    ck_assert_int_eq(json_map_child(map, 0, "k4567"), 4568);
    ck_assert_int_eq(json_map_child(map, 0, "k9001"), -1);
    json_map_free(map);
    strcpy(text + used, ",\"k17\":1}");
    ck_assert_ptr_null(json_strict(text, strlen(text), true, &error));
    ck_assert_str_eq(error.path, "k17");
    free(text);
}
END_TEST

/* The nearest name is the intended one, and what is far from all has none. */
START_TEST(nearest_names)
{
    static const char *const names[] = {"schedule", "microbatches", "chunks", "csv", "send", "layers_per_stage"};
    const struct { const char *name, *near; } cases[] = {
        {"microbatch", "microbatches"}, {"micro_batches", "microbatches"}, {"Schedule", "schedule"}, {"shcedule", "schedule"},
        {"chunk", "chunks"}, {"cvs", "csv"}, {"layers", "layers_per_stage"}, {"LAYERS_PER_STAGE", "layers_per_stage"},
        {"sned", "send"}, {"quux", NULL}, {"", NULL}, {"x", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *near = spelling_nearest(cases[i].name, names, 6);
        ck_assert_msg(near == cases[i].near || (near && cases[i].near && !strcmp(near, cases[i].near)), "%s: %s", cases[i].name,
                      near ? near : "none");
    }
}
END_TEST

/* What the user wrote reaches a terminal without control characters, and never cut within a character. */
START_TEST(foreign_text)
{
    char shown[FOREIGN_TEXT], text[200] = "";
    ck_assert_str_eq(foreign("a\x1b[31m\nb\x7f", shown), "a?[31m?b?");
    ck_assert_str_eq(foreign("\xc2\x9b" "31m", shown), "??31m");
    for (int i = 0; i < 40; i++) strcat(text, "\xe2\x82\xac");
    foreign(text, shown);
    ck_assert_uint_eq(strlen(shown), 63);
    ck_assert_str_eq(shown + 57, "\xe2\x82\xac...");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("json_strict");
    TCase *tcase = tcase_create("text");
    tcase_add_loop_test(tcase, refuses, 0, (int)(sizeof refusals / sizeof refusals[0]));
    tcase_add_test(tcase, accepts);
    tcase_add_test(tcase, limits);
    tcase_add_test(tcase, places);
    tcase_add_test(tcase, many_keys);
    tcase_add_test(tcase, nearest_names);
    tcase_add_test(tcase, foreign_text);
    suite_add_tcase(suite, tcase);
    return run_suite(suite, CK_NOFORK);
}
