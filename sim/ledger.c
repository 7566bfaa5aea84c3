/* ledger: a sorted list of terms. Sums merge two lists in one pass. */
#include "sim/ledger.h"

#include <stdlib.h>
#include <string.h>

#include "sim/hash.h"

void ledger_init(struct ledger *ledger)
{
    *ledger = (struct ledger){0};
}

void ledger_done(struct ledger *ledger)
{
    if (!ledger) return;
    free(ledger->terms);
    *ledger = (struct ledger){0};
}

void ledger_clear(struct ledger *ledger)
{
    ledger->count = 0;
    ledger->tag_sum = 0;
}

int origin_compare(struct origin a, struct origin b)
{
    if (a.step != b.step) return a.step < b.step ? -1 : 1;
    if (a.rank != b.rank) return a.rank < b.rank ? -1 : 1;
    if (a.microbatch != b.microbatch) return a.microbatch < b.microbatch ? -1 : 1;
    return a.part == b.part ? 0 : a.part < b.part ? -1 : 1;
}

uint64_t ledger_tag(struct origin origin)
{
    uint64_t tag = hash_mix((uint64_t)(uint32_t)origin.step + 0x9e3779b97f4a7c15u);
    tag = hash_mix(tag ^ (uint64_t)(uint32_t)origin.rank);
    tag = hash_mix(tag ^ (uint64_t)(uint32_t)origin.microbatch);
    return hash_mix(tag ^ (uint64_t)(uint32_t)origin.part);
}

static void reserve(struct ledger *ledger, int count)
{
    if (count <= ledger->capacity) return;
    ledger->capacity = count > 2 * ledger->capacity ? count + 3 : 2 * ledger->capacity;
    ledger->terms = memory_realloc(ledger->terms, (size_t)ledger->capacity * sizeof *ledger->terms);
}

/* times add, scale is the mean by multiplicity. A fault that adds a buffer to itself doubles each time:
 * the count stops at its limit, which no healthy sum comes near; tag_sum stays exact modulo 2^64. */
static void merge_term(struct ledger_term *term, int32_t times, double scale)
{
    int64_t sum = (int64_t)term->times + times;
    if (sum == 0) {
        term->scale = 0;
    } else if (term->scale != scale) { /* the mean of equal scales is that scale, without a rounding */
        term->scale = (term->times * term->scale + times * scale) / (double)sum;
    }
    term->times = sum > INT32_MAX ? INT32_MAX : sum < INT32_MIN ? INT32_MIN : (int32_t)sum;
}

/* The first position whose origin is not below origin. */
static int lower_bound(const struct ledger *ledger, struct origin origin)
{
    int low = 0, high = ledger->count;
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (origin_compare(ledger->terms[middle].origin, origin) < 0) low = middle + 1;
        else high = middle;
    }
    return low;
}

void ledger_add_term(struct ledger *ledger, struct origin origin, int32_t times, double scale)
{
    int i = lower_bound(ledger, origin);
    ledger->tag_sum += (uint64_t)(int64_t)times * ledger_tag(origin);
    if (i < ledger->count && origin_compare(ledger->terms[i].origin, origin) == 0) {
        merge_term(&ledger->terms[i], times, scale);
        return;
    }
    reserve(ledger, ledger->count + 1);
    memmove(ledger->terms + i + 1, ledger->terms + i, (size_t)(ledger->count - i) * sizeof *ledger->terms);
    ledger->terms[i] = (struct ledger_term){origin, times, scale};
    ledger->count++;
}

static int shared_count(const struct ledger *a, const struct ledger *b)
{
    int i = 0, j = 0, shared = 0;
    while (i < a->count && j < b->count) {
        int order = origin_compare(a->terms[i].origin, b->terms[j].origin);
        shared += order == 0;
        i += order <= 0;
        j += order >= 0;
    }
    return shared;
}

/* Merges from the back, in place: the write position never overtakes the read position. */
void ledger_add(struct ledger *to, const struct ledger *from)
{
    if (to == from) {
        for (int i = 0; i < to->count; i++) merge_term(&to->terms[i], to->terms[i].times, to->terms[i].scale);
        to->tag_sum *= 2;
        return;
    }
    int count = to->count + from->count - shared_count(to, from);
    reserve(to, count);
    int i = to->count - 1, j = from->count - 1;
    for (int k = count - 1; j >= 0; k--) {
        int order = i < 0 ? -1 : origin_compare(to->terms[i].origin, from->terms[j].origin);
        to->terms[k] = order >= 0 ? to->terms[i--] : from->terms[j];
        if (order == 0) merge_term(&to->terms[k], from->terms[j].times, from->terms[j].scale);
        if (order <= 0) j--;
    }
    to->count = count;
    to->tag_sum += from->tag_sum;
}

void ledger_copy(struct ledger *to, const struct ledger *from)
{
    if (to == from) return;
    reserve(to, from->count);
    if (from->count) memcpy(to->terms, from->terms, (size_t)from->count * sizeof *from->terms);
    to->count = from->count;
    to->tag_sum = from->tag_sum;
}

void ledger_scale(struct ledger *ledger, double factor)
{
    for (int i = 0; i < ledger->count; i++) ledger->terms[i].scale *= factor;
}

const struct ledger_term *ledger_find(const struct ledger *ledger, struct origin origin)
{
    int i = lower_bound(ledger, origin);
    bool found = i < ledger->count && origin_compare(ledger->terms[i].origin, origin) == 0;
    return found ? &ledger->terms[i] : NULL;
}
