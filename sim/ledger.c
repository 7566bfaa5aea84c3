/* ledger: a sorted list of terms. Lists are short (data ranks x micro-batches), so a linear merge does. */
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

void ledger_add_term(struct ledger *ledger, struct origin origin, int32_t times, double scale)
{
    int i = ledger->count;
    while (i > 0 && origin_compare(ledger->terms[i - 1].origin, origin) >= 0) i--;
    ledger->tag_sum += (uint64_t)(int64_t)times * ledger_tag(origin);
    if (i < ledger->count && origin_compare(ledger->terms[i].origin, origin) == 0) {
        struct ledger_term *term = &ledger->terms[i];
        int32_t sum = term->times + times;
        term->scale = sum == 0 ? 0 : (term->times * term->scale + times * scale) / sum;
        term->times = sum;
        return;
    }
    reserve(ledger, ledger->count + 1);
    memmove(ledger->terms + i + 1, ledger->terms + i, (size_t)(ledger->count - i) * sizeof *ledger->terms);
    ledger->terms[i] = (struct ledger_term){origin, times, scale};
    ledger->count++;
}

void ledger_add(struct ledger *to, const struct ledger *from)
{
    if (to == from) {
        for (int i = 0; i < to->count; i++) to->terms[i].times *= 2;
        to->tag_sum *= 2;
        return;
    }
    for (int i = 0; i < from->count; i++) {
        ledger_add_term(to, from->terms[i].origin, from->terms[i].times, from->terms[i].scale);
    }
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
    for (int i = 0; i < ledger->count; i++) {
        if (origin_compare(ledger->terms[i].origin, origin) == 0) return &ledger->terms[i];
    }
    return NULL;
}
