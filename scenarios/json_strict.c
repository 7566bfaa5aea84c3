/* json_strict: a recursive descent over RFC 8259's grammar that notes places and refuses
 *
 *   bytes that are not UTF-8, a byte-order mark, NUL and \u0000, raw control characters in strings, lone halves of
 *   surrogate pairs, duplicate keys, numbers that are no JSON (01, +1, .5, NaN), that overflow or vanish in a
 *   double, or that are longer than what cJSON reads whole, comments, trailing commas, text after the end, nesting
 *   deeper than JSON_DEPTH_MAX, more than JSON_VALUES_MAX values. */
#include "scenarios/json_strict.h"

#include <ctype.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "scenarios/spelling.h"
#include "sim/arena.h"

struct scanner {
    const char *text;
    size_t bytes, at;
    int line, column, depth;
    struct json_map *map;
    int node;                     /* of the value that is read; -1 before the first */
    char *string;                 /* the last string, decoded */
    size_t string_used, string_capacity;
    struct error *error;
};

/* ---- places ---- */

static struct json_place here(const struct scanner *s)
{
    return (struct json_place){s->line, s->column};
}

static bool fail(struct scanner *s, struct json_place place, const char *message)
{
    char path[256];
    json_map_path(s->map, s->node, path, sizeof path);
    error_input(s->error, "%s", message);
    error_at(s->error, NULL, place.line, place.column, path);
    return false;
}

static unsigned char peek(const struct scanner *s)
{
    return s->at < s->bytes ? (unsigned char)s->text[s->at] : 0; /* NUL bytes were refused before */
}

static void step(struct scanner *s)
{
    unsigned char c = peek(s);
    s->at++;
    if (c == '\n') {
        s->line++;
        s->column = 1;
    } else if ((peek(s) & 0xc0) != 0x80) { /* the next byte begins a character */
        s->column++;
    }
}

/* "'x' found", "the end of the text" */
static void describe_found(const struct scanner *s, char text[48])
{
    unsigned char c = peek(s);
    if (s->at >= s->bytes) snprintf(text, 48, "the end of the text");
    else if (c >= 0x20 && c < 0x7f) snprintf(text, 48, "'%c'", c);
    else if (c >= 0x80) snprintf(text, 48, "a character outside ASCII");
    else snprintf(text, 48, "control character %d", c);
}

static bool fail_expected(struct scanner *s, const char *expected)
{
    char found[48], message[160];
    describe_found(s, found);
    snprintf(message, sizeof message, "%s expected, found %s", expected, found);
    fail(s, here(s), message);
    if (peek(s) == '/' || peek(s) == '#') error_hint(s->error, "JSON has no comments");
    if (peek(s) == '\'') error_hint(s->error, "JSON has only double quotes");
    return false;
}

static void skip_blanks(struct scanner *s)
{
    while (s->at < s->bytes && strchr(" \t\r\n", s->text[s->at])) step(s);
}

/* ---- bytes ---- */

/* Length of the UTF-8 sequence here, 0 if it is none (overlong, surrogate, beyond U+10FFFF, cut). */
static int sequence_length(const unsigned char *p, size_t left)
{
    if (p[0] < 0x80) return 1;
    if (p[0] < 0xc2 || p[0] > 0xf4) return 0;
    int length = p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : 4;
    if ((size_t)length > left) return 0;
    for (int i = 1; i < length; i++) {
        if ((p[i] & 0xc0) != 0x80) return 0;
    }
    if (p[0] == 0xe0 && p[1] < 0xa0) return 0;
    if (p[0] == 0xed && p[1] >= 0xa0) return 0;
    if (p[0] == 0xf0 && p[1] < 0x90) return 0;
    if (p[0] == 0xf4 && p[1] >= 0x90) return 0;
    return length;
}

static bool check_bytes(struct scanner *s)
{
    const unsigned char *text = (const unsigned char *)s->text;
    if (s->bytes >= 3 && !memcmp(text, "\xef\xbb\xbf", 3)) {
        return fail(s, here(s), "the text begins with a byte-order mark; plain UTF-8 is allowed");
    }
    for (size_t at = 0; at < s->bytes;) {
        char message[96];
        int length = sequence_length(text + at, s->bytes - at);
        if (length == 0) {
            snprintf(message, sizeof message, "byte 0x%02x is not UTF-8", text[at]);
            return fail(s, here(s), message);
        }
        if (text[at] == 0) return fail(s, here(s), "the text holds a NUL byte");
        s->line += text[at] == '\n';
        s->column = text[at] == '\n' ? 1 : s->column + 1;
        at += (size_t)length;
    }
    s->line = s->column = 1;
    return true;
}

bool json_text_valid(const char *text, size_t bytes)
{
    const unsigned char *p = (const unsigned char *)text;
    for (size_t at = 0; at < bytes;) {
        int length = sequence_length(p + at, bytes - at);
        if (length == 0 || p[at] < 0x20 || p[at] == 0x7f) return false;
        at += (size_t)length;
    }
    return true;
}

/* ---- strings ---- */

static void keep(struct scanner *s, const char *bytes, size_t count)
{
    if (s->string_used + count + 1 > s->string_capacity) {
        s->string_capacity = 2 * (s->string_used + count + 1);
        s->string = memory_realloc(s->string, s->string_capacity);
    }
    memcpy(s->string + s->string_used, bytes, count);
    s->string_used += count;
    s->string[s->string_used] = 0;
}

static void keep_code_point(struct scanner *s, uint32_t c)
{
    char bytes[4];
    size_t count = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const unsigned char lead[5] = {0, 0x00, 0xc0, 0xe0, 0xf0};
    for (size_t i = count - 1; i > 0; i--, c >>= 6) bytes[i] = (char)(0x80 | (c & 0x3f));
    bytes[0] = (char)(lead[count] | c);
    keep(s, bytes, count);
}

/* The four digits behind \u; the scanner stands on the first. */
static bool scan_hex(struct scanner *s, uint32_t *ret_unit)
{
    *ret_unit = 0;
    for (int i = 0; i < 4; i++) {
        unsigned char c = peek(s);
        if (!isxdigit(c)) return fail_expected(s, "a hexadecimal digit (four behind \\u)");
        *ret_unit = *ret_unit * 16 + (uint32_t)(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
        step(s);
    }
    return true;
}

static bool scan_unicode(struct scanner *s, struct json_place place)
{
    uint32_t unit, low;
    if (!scan_hex(s, &unit)) return false;
    if (unit == 0) return fail(s, place, "\\u0000 is not allowed in a string");
    if (unit >= 0xdc00 && unit <= 0xdfff) return fail(s, place, "a low surrogate without a high one before it");
    if (unit >= 0xd800 && unit <= 0xdbff) {
        if (peek(s) != '\\' || s->text[s->at + 1] != 'u')
            return fail(s, place, "a high surrogate without a low one behind it");
        step(s);
        step(s);
        if (!scan_hex(s, &low)) return false;
        if (low < 0xdc00 || low > 0xdfff) return fail(s, place, "a high surrogate without a low one behind it");
        unit = 0x10000 + ((unit - 0xd800) << 10) + (low - 0xdc00);
    }
    keep_code_point(s, unit);
    return true;
}

static bool scan_escape(struct scanner *s)
{
    static const char letters[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
    struct json_place place = here(s);
    step(s);
    unsigned char c = peek(s);
    if (c == 'u') {
        step(s);
        return scan_unicode(s, place);
    }
    const char *letter = c ? strchr(letters, c) : NULL;
    if (!letter) return fail_expected(s, "one of \" \\ / b f n r t u behind \\");
    keep(s, meanings + (letter - letters), 1);
    step(s);
    return true;
}

/* The scanner stands on the opening quote. */
static bool scan_string(struct scanner *s)
{
    struct json_place start = here(s);
    s->string_used = 0;
    keep(s, "", 0);
    step(s);
    while (peek(s) != '"') {
        unsigned char c = peek(s);
        if (s->at >= s->bytes) return fail(s, start, "this string has no closing quote");
        if (c < 0x20) {
            char message[96];
            if (c == '\n' || c == '\r') return fail(s, start, "this string has no closing quote on its line");
            snprintf(message, sizeof message, "control character %d in a string; write it as \\u%04x", c, c);
            return fail(s, here(s), message);
        }
        if (c == '\\') {
            if (!scan_escape(s)) return false;
            continue;
        }
        keep(s, s->text + s->at, 1);
        step(s);
    }
    step(s);
    return true;
}

/* ---- numbers and words ---- */

static void scan_digits(struct scanner *s)
{
    while (isdigit(peek(s))) step(s);
}

/* Is it a number that a double holds? Overflow and what vanishes are refused. */
static bool check_number(struct scanner *s, struct json_place start, const char *text, size_t length)
{
    char copy[JSON_NUMBER_MAX + 1], message[160];
    if (length > JSON_NUMBER_MAX) {
        snprintf(message, sizeof message, "a number of %zu characters; at most %d are allowed", length,
                 JSON_NUMBER_MAX);
        return fail(s, start, message);
    }
    memcpy(copy, text, length);
    copy[length] = 0;
    double value = strtod(copy, NULL);
    size_t mantissa = strcspn(copy, "eE");
    bool has_digit = strcspn(copy, "123456789") < mantissa;
    if (isinf(value)) snprintf(message, sizeof message, "number %s is too large for float64", copy);
    else if (value == 0 && has_digit) snprintf(message, sizeof message, "number %s is too small for float64", copy);
    else return true;
    return fail(s, start, message);
}

static bool scan_number(struct scanner *s)
{
    struct json_place start = here(s);
    size_t first = s->at;
    if (peek(s) == '-') step(s);
    if (peek(s) == '0') {
        step(s);
        if (isdigit(peek(s))) return fail(s, start, "a number has no leading zero");
    } else if (isdigit(peek(s))) {
        scan_digits(s);
    } else {
        return fail_expected(s, "a digit behind '-'");
    }
    if (peek(s) == '.') {
        step(s);
        if (!isdigit(peek(s))) return fail_expected(s, "a digit behind the decimal point");
        scan_digits(s);
    }
    if (peek(s) == 'e' || peek(s) == 'E') {
        step(s);
        if (peek(s) == '+' || peek(s) == '-') step(s);
        if (!isdigit(peek(s))) return fail_expected(s, "a digit of the exponent");
        scan_digits(s);
    }
    return check_number(s, start, s->text + first, s->at - first);
}

static bool scan_word(struct scanner *s)
{
    static const char *const words[] = {"true", "false", "null"};
    char word[24] = "", message[96];
    struct json_place start = here(s);
    for (size_t i = 0; (isalnum(peek(s)) || peek(s) == '_') && i + 1 < sizeof word; i++) {
        word[i] = (char)peek(s);
        step(s);
    }
    for (int i = 0; i < 3; i++) {
        if (!strcmp(word, words[i])) return true;
    }
    snprintf(message, sizeof message, "'%s' is not a JSON value", word);
    fail(s, start, message);
    for (int i = 0; i < 3; i++) {
        if (!strcasecmp(word, words[i])) error_hint(s->error, "write %s", words[i]);
    }
    if (!strcasecmp(word, "none")) error_hint(s->error, "write null");
    if (!strcasecmp(word, "nan") || !strncasecmp(word, "inf", 3)) error_hint(s->error, "JSON numbers are finite");
    return false;
}

/* ---- values ---- */

static bool scan_value(struct scanner *s, int node);

static bool scan_child(struct scanner *s, int parent, const char *key, int index, struct json_place key_place)
{
    if (json_map_count(s->map) >= JSON_VALUES_MAX) {
        char message[64];
        snprintf(message, sizeof message, "more than %d values", JSON_VALUES_MAX);
        return fail(s, here(s), message);
    }
    int node = json_map_add(s->map, parent, key, index, key_place, key_place);
    s->node = node;
    if (key) {
        skip_blanks(s);
        if (peek(s) != ':') return fail_expected(s, "':' behind a key");
        step(s);
        skip_blanks(s);
    }
    if (!scan_value(s, node)) return false;
    s->node = parent;
    skip_blanks(s);
    return true;
}

static bool scan_member(struct scanner *s, int node)
{
    struct json_place place = here(s);
    if (peek(s) != '"') return fail_expected(s, "a key in double quotes");
    if (!scan_string(s)) return false;
    int other = json_map_child(s->map, node, s->string);
    if (other >= 0) {
        char message[160], key[FOREIGN_TEXT];
        snprintf(message, sizeof message, "key '%s' is given twice; the first is in line %d", foreign(s->string, key),
                 json_map_key_place(s->map, other).line);
        s->node = other;
        return fail(s, place, message);
    }
    return scan_child(s, node, s->string, 0, place);
}

/* An object or a list, from its opening bracket. */
static bool scan_container(struct scanner *s, int node)
{
    bool object = peek(s) == '{';
    unsigned char close = object ? '}' : ']';
    if (++s->depth > JSON_DEPTH_MAX) return fail(s, here(s), "nesting is deeper than 64");
    step(s);
    skip_blanks(s);
    for (int index = 0; peek(s) != close; index++) {
        bool good = object ? scan_member(s, node) : scan_child(s, node, NULL, index, here(s));
        if (!good) return false;
        if (peek(s) == close) break;
        if (peek(s) != ',') return fail_expected(s, object ? "',' or '}'" : "',' or ']'");
        struct json_place comma = here(s);
        step(s);
        skip_blanks(s);
        if (peek(s) == close) return fail(s, comma, object ? "a comma before '}'" : "a comma before ']'");
    }
    step(s);
    s->depth--;
    return true;
}

static bool scan_value(struct scanner *s, int node)
{
    unsigned char c = peek(s);
    json_map_set_value_place(s->map, node, here(s));
    if (c == '{' || c == '[') return scan_container(s, node);
    if (c == '"') return scan_string(s);
    if (c == '-' || isdigit(c)) return scan_number(s);
    if (isalpha(c)) return scan_word(s);
    return fail_expected(s, "a value");
}

static bool scan_document(struct scanner *s, bool object_only)
{
    if (!check_bytes(s)) return false;
    skip_blanks(s);
    if (object_only && peek(s) != '{') return fail_expected(s, "'{'");
    s->node = json_map_add(s->map, -1, NULL, 0, here(s), here(s));
    if (!scan_value(s, s->node)) return false;
    s->node = -1;
    skip_blanks(s);
    return s->at >= s->bytes || fail_expected(s, "nothing more behind the last bracket");
}

struct json_map *json_strict(const char *text, size_t bytes, bool object_only, struct error *error)
{
    struct scanner s = {
        .text = text, .bytes = bytes, .line = 1, .column = 1, .map = json_map_new(), .node = -1, .error = error};
    bool good = scan_document(&s, object_only);
    free(s.string);
    if (good) return s.map;
    json_map_free(s.map);
    return NULL;
}
