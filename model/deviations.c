/* deviations: the bodies. Each changes a number, a condition or rows, never a ledger or a record. */
#include "model/deviations.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/precision.h"
#include "sim/arena.h"
#include "sim/assertion.h"

enum model_deviation {
#define DEVIATION(identifier, name, kind, needs, what) identifier,
#include "model/deviations.def"
#undef DEVIATION
};

static const struct deviation deviations[] = {
#define DEVIATION(identifier, name, kind, needs, what) [identifier] = {name, kind, needs, what},
#include "model/deviations.def"
#undef DEVIATION
};

int model_deviation_count(void)
{
    return (int)(sizeof deviations / sizeof deviations[0]);
}

const struct deviation *model_deviation(int i)
{
    return i >= 0 && i < model_deviation_count() ? &deviations[i] : NULL;
}

static enum model_deviation which(const struct armed *armed)
{
    ASSERT(armed->deviation >= deviations && armed->deviation < deviations + model_deviation_count());
    return (enum model_deviation)(armed->deviation - deviations);
}

/* ---- expressions: term = atom { (* | /) atom }, atom = number | letter | ( term ) ---- */

struct parser { const char *text, *at; const struct factor_numbers *numbers; struct error *error; };

static bool parse_term(struct parser *p, double *ret_value);

static bool parse_letter(struct parser *p, double *ret_value)
{
    const struct factor_numbers *n = p->numbers;
    const struct { const char *name; double value; } letters[] = {
        {"N_unshifted", n->N_unshifted}, {"N_all", n->N_all}, {"n_rank", n->n_rank}, {"n_rank_unshifted", n->n_rank_unshifted},
        {"D_shard", n->D_shard}, {"D_replicate", n->D_replicate}, {"M", n->M}, {"D", n->D},
        {"P", n->P}, {"C", n->C}, {"T", n->T}, {"E", n->E}, {"A", n->A}, {"N", n->N}, {"n", n->n},
    };
    size_t length = 0;
    while (isalpha((unsigned char)p->at[length]) || p->at[length] == '_') length++;
    for (size_t i = 0; i < sizeof letters / sizeof letters[0]; i++) {
        if (strlen(letters[i].name) == length && !strncmp(letters[i].name, p->at, length)) {
            *ret_value = letters[i].value;
            p->at += length;
            return true;
        }
    }
    return error_input(p->error, "factor '%s': '%.*s' is none of M, D, P, C, T, E, A, N, N_all, N_unshifted, n, n_rank, n_rank_unshifted, D_shard, D_replicate",
                       p->text, (int)length, p->at);
}

/* Decimal digits with an optional fraction; the C locale has no say here. */
static bool parse_number(struct parser *p, double *ret_value)
{
    double value = 0, unit = 1;
    if (!isdigit((unsigned char)p->at[0]) && !isdigit((unsigned char)p->at[1])) {
        return error_input(p->error, "factor '%s': a digit is due at '%s'", p->text, p->at);
    }
    while (isdigit((unsigned char)*p->at)) value = value * 10 + (*p->at++ - '0');
    if (*p->at == '.') {
        for (p->at++; isdigit((unsigned char)*p->at); p->at++) {
            unit *= 10;
            value = value * 10 + (*p->at - '0');
        }
    }
    *ret_value = value / unit;
    return true;
}

static void skip_blanks(struct parser *p)
{
    while (*p->at == ' ') p->at++;
}

static bool parse_atom(struct parser *p, double *ret_value)
{
    skip_blanks(p);
    if (*p->at == '(') {
        p->at++;
        if (!parse_term(p, ret_value)) return false;
        skip_blanks(p);
        if (*p->at != ')') return error_input(p->error, "factor '%s': ')' is missing", p->text);
        p->at++;
        return true;
    }
    if (isdigit((unsigned char)*p->at) || *p->at == '.') return parse_number(p, ret_value);
    if (isalpha((unsigned char)*p->at)) return parse_letter(p, ret_value);
    return error_input(p->error, "factor '%s': a number, a letter or '(' is due at '%s'", p->text, p->at);
}

static bool parse_term(struct parser *p, double *ret_value)
{
    double value, next;
    if (!parse_atom(p, &value)) return false;
    for (;;) {
        skip_blanks(p);
        char operation = *p->at;
        if (operation != '*' && operation != '/') break;
        p->at++;
        if (!parse_atom(p, &next)) return false;
        value = operation == '*' ? value * next : value / next;
    }
    *ret_value = value;
    return true;
}

bool factor_parse(const char *text, const struct factor_numbers *numbers, double *ret_value, struct error *error)
{
    if (strlen(text) > 90) return error_input(error, "factor '%.40s...' is too long", text);
    struct parser p = {text, text, numbers, error};
    if (!parse_term(&p, ret_value)) return false;
    skip_blanks(&p);
    if (*p.at) return error_input(error, "factor '%s': '%s' is left over", text, p.at);
    return true;
}

/* ---- bodies ---- */

static double deviating_factor(const struct armed *armed, double value, const struct factor_numbers *numbers)
{
    struct error error = {0};
    double factor = armed->value;
    if (armed->text[0]) {
        bool parsed = factor_parse(armed->text, numbers, &factor, &error);
        ASSERT_MESSAGE(parsed, "%s", error.message); /* the loader has parsed it before */
    }
    switch (which(armed)) {
    case FACTOR_OMIT: return 1;
    case FACTOR_TWICE: return value * value;
    case FACTOR_TIMES: return value * factor;
    case FACTOR_SET: return factor;
    case FACTOR_NEGATE: return -value;
    case FACTOR_PER_STEP: return value * (armed->text[0] || armed->value != 0 ? factor : 1 / numbers->M);
    default: ASSERT(!"a deviation of another kind"); return value;
    }
}

struct factor_use factor_use_site(struct site_plan *plan, const struct site *site, struct where where, double value,
                                  const struct factor_numbers *numbers)
{
    const struct armed *armed = site_pass(plan, site, where);
    if (!armed) return (struct factor_use){value, false};
    return (struct factor_use){deviating_factor(armed, value, numbers), which(armed) == FACTOR_PER_STEP};
}

double factor_site(struct site_plan *plan, const struct site *site, struct where where, double value,
                   const struct factor_numbers *numbers)
{
    return factor_use_site(plan, site, where, value, numbers).value;
}

bool decision_site(struct site_plan *plan, const struct site *site, struct where where, bool value, bool early)
{
    const struct armed *armed = site_pass(plan, site, where);
    if (!armed) return value;
    switch (which(armed)) {
    case DECISION_ALWAYS: return true;
    case DECISION_NEVER: return false;
    case DECISION_NEGATE: return !value;
    case DECISION_OFF_BY_ONE: return early;
    case DECISION_STICK: return site_stick(plan, armed, where.rank, value);
    default: ASSERT(!"a deviation of another kind"); return value;
    }
}

bool mode_site(struct site_plan *plan, const struct site *site, struct where where, bool value, bool always)
{
    const struct armed *armed = site_peek(plan, site, where);
    if (!armed || which(armed) != DECISION_IGNORE_GUARD) return decision_site(plan, site, where, value, value);
    site_pass(plan, site, where);
    return always;
}

enum merging_way merge_site(struct site_plan *plan, const struct site *site, struct where where)
{
    const struct armed *armed = site_pass(plan, site, where);
    if (!armed) return MERGE_DUE;
    switch (which(armed)) {
    case TENSOR_KEEP_FIRST: return MERGE_KEEP_FIRST;
    case TENSOR_KEEP_LAST: return MERGE_KEEP_LAST;
    case TENSOR_AVERAGE: return MERGE_AVERAGE;
    case TENSOR_SUM: return MERGE_SUM;
    default: ASSERT(!"a deviation of another kind"); return MERGE_DUE;
    }
}

/* The deviation is the collectives' floor's, the list of actions this one's (collectives/deviations.def). */
bool order_site(struct site_plan *plan, const struct site *site, struct where where)
{
    const struct armed *armed = site_peek(plan, site, where);
    return armed && !strcmp(armed->deviation->name, "swap-order") && site_pass(plan, site, where);
}

int64_t index_site(struct site_plan *plan, const struct site *site, struct where where, int64_t row,
                   int64_t row_of_rank_0, int64_t count)
{
    const struct armed *armed = site_pass(plan, site, where);
    if (!armed) return row;
    int64_t shift = armed->value != 0 ? (int64_t)armed->value : 1;
    switch (which(armed)) {
    case TENSOR_DUPLICATE_ROWS: return row_of_rank_0;
    case TENSOR_SHIFT: return ((row + shift) % count + count) % count;
    default: ASSERT(!"a deviation of another kind"); return row;
    }
}

/* Biases end in ones in both storages, so the low bits of the exponent do the same to a number in either. */
static void flip_exponent_bit(struct tensor values, int bit)
{
    size_t middle = (size_t)tensor_count(values) / 2;
    if (values.storage == FORMAT_FP32) {
        uint32_t word;
        char *at = (char *)values.data + middle * sizeof word;
        memcpy(&word, at, sizeof word);
        word ^= UINT32_C(1) << (23 + bit % 8);
        memcpy(at, &word, sizeof word);
    } else {
        uint64_t word;
        char *at = (char *)values.data + middle * sizeof word;
        memcpy(&word, at, sizeof word);
        word ^= UINT64_C(1) << (52 + bit % 11);
        memcpy(at, &word, sizeof word);
    }
}

void tensor_site(struct site_plan *plan, const struct site *site, struct where where, struct tensor values)
{
    const struct armed *armed = site_pass(plan, site, where);
    if (!armed || tensor_count(values) == 0) return;
    double by = armed->value != 0 ? armed->value : 0.01;
    switch (which(armed)) {
    case TENSOR_ZERO:
        memset(values.data, 0, (size_t)tensor_bytes(values));
        break;
    case TENSOR_ROUND: {
        enum format format = FORMAT_BF16;
        if (armed->text[0]) format_parse(armed->text, &format);
        tensor_round(values, format);
        break;
    }
    case TENSOR_WRONG_BASE:
        for (int64_t i = 0; i < tensor_count(values); i++)
            format_set(values.data, (size_t)i, values.storage, format_get(values.data, (size_t)i, values.storage) * 1.4426950408889634);
        break;
    case TENSOR_PERTURB:
        format_set(values.data, 0, values.storage, format_get(values.data, 0, values.storage) * (1 + by));
        break;
    case TENSOR_BIT_FLIP:
        flip_exponent_bit(values, armed->value > 0 ? (int)armed->value : 3);
        break;
    default:
        ASSERT(!"a deviation of another kind");
    }
}

/* A dense [d0, d1, width] read as [d1, d0, width] and put in the order [d0, d1] again: row (i, j) is what lies at
 * j * d0 + i. */
static void mistake_axes(struct tensor values, bool backward)
{
    int64_t d0 = values.shape[0], d1 = values.shape[1];
    size_t row = (size_t)(values.shape[2] * format_storage_bytes(values.storage)), bytes = (size_t)tensor_bytes(values);
    char *to = values.data, *from = memory_alloc(bytes ? bytes : 1);
    ASSERT(values.dims == 3 && tensor_is_dense(values));
    memcpy(from, to, bytes);
    for (int64_t i = 0; i < d0; i++) {
        for (int64_t j = 0; j < d1; j++) {
            size_t here = (size_t)(i * d1 + j) * row, there = (size_t)(j * d0 + i) * row;
            if (backward) memcpy(to + there, from + here, row);
            else memcpy(to + here, from + there, row);
        }
    }
    free(from);
}

void tensor_site_axes(struct site_plan *plan, const struct site *site, struct where where, struct tensor values, bool backward)
{
    const struct armed *armed = site_peek(plan, site, where);
    if (!armed) return;
    if (which(armed) != TENSOR_WRONG_AXIS) {
        if (!backward) tensor_site(plan, site, where, values);
        return;
    }
    site_pass(plan, site, where);
    mistake_axes(values, backward);
}

struct memory_range memory_range_site(struct site_plan *plan, const struct site *site, struct where where, int64_t whole)
{
    const struct armed *armed = site_peek(plan, site, where);
    if (!armed || which(armed) == MEMORY_NOT_ZEROED) return (struct memory_range){0, whole};
    site_pass(plan, site, where);
    int64_t by = armed->value >= 1 ? (int64_t)fmin(armed->value, 1e15) : 1;
    if (by > whole) by = whole; /* more than there is: all of it */
    if (which(armed) == MEMORY_LOSE_RANGE) return (struct memory_range){0, whole - by};
    ASSERT(which(armed) == MEMORY_WRONG_RANGE);
    return (struct memory_range){by, whole - by};
}

bool memory_site_keeps(struct site_plan *plan, const struct site *site, struct where where)
{
    const struct armed *armed = site_peek(plan, site, where);
    return armed && which(armed) == MEMORY_NOT_ZEROED && site_pass(plan, site, where);
}
