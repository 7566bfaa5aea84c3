/* ratio: the search over monomials. 3 to the number of letters of them; a form that misses one sample is dropped at once. */
#include "scenarios/ratio.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "sim/assertion.h"

/* In the order in which a form is written. */
enum letter {
    LETTER_N,
    LETTER_N_ALL,
    LETTER_N_UNSHIFTED,
    LETTER_n,
    LETTER_n_RANK,
    LETTER_M,
    LETTER_D,
    LETTER_P,
    LETTER_D_SHARD,
    LETTER_D_REPLICATE,
    LETTER_E,
    LETTER_T,
    LETTER_C,
    LETTERS
};
static const char *const letter_names[LETTERS] = {"N", "N_all", "N_unshifted", "n", "n_rank", "M", "D", "P", "D_shard", "D_replicate", "E", "T", "C"};
static const int letter_rank[LETTERS] = {6, 8, 7, 4, 5, 1, 2, 3, 9, 10, 11, 12, 13}; /* preference where forms have equally many letters */

struct monomial { int exponent[LETTERS]; int sign; };

static double letter_value(const struct factor_numbers *numbers, enum letter letter)
{
    switch (letter) {
    case LETTER_N: return numbers->N;
    case LETTER_N_ALL: return numbers->N_all;
    case LETTER_N_UNSHIFTED: return numbers->N_unshifted;
    case LETTER_n: return numbers->n;
    case LETTER_n_RANK: return numbers->n_rank;
    case LETTER_M: return numbers->M;
    case LETTER_D: return numbers->D;
    case LETTER_P: return numbers->P;
    case LETTER_D_SHARD: return numbers->D_shard;
    case LETTER_D_REPLICATE: return numbers->D_replicate;
    case LETTER_E: return numbers->E;
    case LETTER_T: return numbers->T;
    case LETTER_C: return numbers->C;
    default: ASSERT(!"no such letter"); return NAN;
    }
}

static double monomial_value(const struct monomial *m, const struct factor_numbers *numbers)
{
    double value = m->sign;
    for (int l = 0; l < LETTERS; l++) {
        if (m->exponent[l] == 0) continue;
        double letter = letter_value(numbers, (enum letter)l);
        value = m->exponent[l] > 0 ? value * letter : value / letter;
    }
    return value;
}

static void write_side(const struct monomial *m, int exponent, char *text, size_t size)
{
    text[0] = '\0';
    for (int l = 0; l < LETTERS; l++) {
        for (int times = 0; times < m->exponent[l] * exponent; times++) {
            size_t used = strlen(text);
            snprintf(text + used, size - used, "%s%s", used ? "*" : "", letter_names[l]);
        }
    }
}

static void monomial_text(const struct monomial *m, char text[48])
{
    char top[48], bottom[48], whole[120];
    write_side(m, 1, top, sizeof top);
    write_side(m, -1, bottom, sizeof bottom);
    snprintf(whole, sizeof whole, "%s%s%s%s%s%s", m->sign < 0 ? "-" : "", top[0] ? top : "1", bottom[0] ? "/" : "",
             strchr(bottom, '*') ? "(" : "", bottom, strchr(bottom, '*') ? ")" : "");
    memcpy(text, whole, 47);
    text[47] = '\0';
}

/* The next combination of the used letters' exponents, counting in base 3; false after the last. */
static bool monomial_next(struct monomial *m, const bool used[LETTERS])
{
    for (int l = 0; l < LETTERS; l++) {
        if (!used[l]) continue;
        if (++m->exponent[l] <= 1) return true;
        m->exponent[l] = -1;
    }
    return false;
}

static int monomial_cost(const struct monomial *m, char prefer, int *ret_letters)
{
    int cost = 0, letters = 0;
    for (int l = 0; l < LETTERS; l++) {
        if (m->exponent[l] == 0) continue;
        letters++;
        bool preferred = letter_names[l][0] == prefer && letter_names[l][1] == '\0';
        cost += 100 + (preferred ? 0 : letter_rank[l]);
    }
    *ret_letters = letters;
    return cost;
}

/* Letters that say nothing in this run (D = 1), or that are not known, take no part; the parts of D neither, unless
 * there are both. */
static void letters_in_use(const struct ratio_sample *samples, int count, bool ret_used[LETTERS])
{
    for (int l = 0; l < LETTERS; l++) {
        ret_used[l] = false;
        for (int i = 0; i < count; i++) {
            double value = letter_value(&samples[i].numbers, (enum letter)l);
            if (!(value > 0)) {
                ret_used[l] = false;
                break;
            }
            if (value != 1) ret_used[l] = true;
        }
    }
    if (!ret_used[LETTER_D_SHARD] || !ret_used[LETTER_D_REPLICATE])
        ret_used[LETTER_D_SHARD] = ret_used[LETTER_D_REPLICATE] = false;
}

static bool monomial_fits(const struct monomial *m, const struct ratio_sample *samples, int count, double tolerance)
{
    for (int i = 0; i < count; i++) {
        double due = monomial_value(m, &samples[i].numbers);
        if (!(fabs(samples[i].value - due) <= tolerance * fabs(due))) return false;
    }
    return true;
}

static void form_fill(struct ratio_form *form, const struct monomial *m, const struct ratio_sample *first)
{
    form->found = true;
    monomial_text(m, form->text);
    form->value = first->value;
    struct monomial rest = *m;
    if (m->exponent[LETTER_n] == -1 && m->exponent[LETTER_N] == 1) {
        rest.exponent[LETTER_n]++;
        rest.exponent[LETTER_M]++;
    } else if (m->exponent[LETTER_n_RANK] == -1 && m->exponent[LETTER_N] == 1) {
        rest.exponent[LETTER_n_RANK]++;
    } else {
        memcpy(form->beside_mean, form->text, sizeof form->text);
        return;
    }
    rest.exponent[LETTER_N]--;
    rest.exponent[LETTER_D]++;
    bool one = rest.sign == 1;
    for (int l = 0; l < LETTERS; l++)
        one = one && (rest.exponent[l] == 0 || letter_value(&first->numbers, (enum letter)l) == 1);
    if (one) {
        memcpy(form->beside_mean, form->text, sizeof form->text);
        return;
    }
    for (int l = 0; l < LETTERS; l++) {
        if (letter_value(&first->numbers, (enum letter)l) == 1) rest.exponent[l] = 0;
    }
    monomial_text(&rest, form->beside_mean);
    form->value = monomial_value(&rest, &first->numbers);
}

struct ratio_form ratio_classify(const struct ratio_sample *samples, int count, char prefer, int letters_max,
                                 double tolerance)
{
    struct ratio_form form = {.value = NAN};
    if (count == 0) return form;
    form.value = samples[0].value;
    bool zero = true, used[LETTERS];
    for (int i = 0; i < count; i++) zero = zero && samples[i].value == 0;
    if (zero) {
        form.found = true;
        form.text[0] = form.beside_mean[0] = '0';
        return form;
    }
    letters_in_use(samples, count, used);
    struct monomial m = {.sign = samples[0].value < 0 ? -1 : 1}, best = m;
    int best_cost = -1;
    for (int l = 0; l < LETTERS; l++) m.exponent[l] = used[l] ? -1 : 0;
    do {
        int letters;
        int cost = monomial_cost(&m, prefer, &letters);
        if (letters > letters_max || (best_cost >= 0 && cost >= best_cost)) continue;
        if (!monomial_fits(&m, samples, count, tolerance)) continue;
        best = m;
        best_cost = cost;
    } while (monomial_next(&m, used));
    if (best_cost >= 0) form_fill(&form, &best, &samples[0]);
    return form;
}
