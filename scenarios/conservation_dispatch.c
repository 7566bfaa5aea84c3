/* conservation_dispatch: what goes to experts on other ranks arrives there, and what they give comes home.
 *
 * For the rows of one rank (the source) in one layer and micro-batch, at each member of its expert-parallel group:
 *   counts        a member takes as many rows of each expert to be from the source as that sends
 *   there         its experts read the source's rows, in their order          (backward: the gradient of the results)
 *   back          each row gets what its expert gave                          (backward: the gradient of the row)
 *   sums          where results come home summed (all_gather, replicated): a token's is the sum of what the members' experts gave its
 *                 rows, times the weights; its gradient the sum of its rows'; and a weight's gradient the one that its row's expert has
 *   copies        tp ranks that share their tokens out have each other's results
 * By tags (model/routing.h): exact one by one; what is weighed or added within as many roundings of the narrowest format as it
 * meets at most, relative to magnitudes (a tag of a small sum of large numbers says nothing of their roundings), and the
 * format's smallest number an element; nothing is held of what may have left the finite numbers. Sites: the exchange that
 * what is wrong went through. */
#include "scenarios/conservation_dispatch.h"

#include <math.h>
#include <stdlib.h>

#include "model/precision.h"
#include "model/sites.h"
#include "scenarios/dispatch_calls.h"
#include "scenarios/facts.h"
#include "scenarios/routing_due.h"

struct source {
    const struct evidence *e;
    struct check_output *output;
    const struct rank_record *rank;
    const struct routing_fact *fact;
    const struct dispatch_fact *own;
    int64_t rows, *row;             /* own rows; which of the routing's each is */
};

static const struct routing_fact *fact_at(const struct source *s, int rank)
{
    const struct rank_record *other = &s->e->parallel->rank[rank];
    for (int i = 0; i < other->routings.count; i++) {
        const struct routing_fact *fact = &other->routings.items[i];
        if (fact->step == s->fact->step && fact->microbatch == s->fact->microbatch && fact->unit == s->fact->unit) return fact->whole ? fact : NULL;
    }
    return NULL;
}

static void find_own_rows(struct source *s)
{
    const struct routing_fact *fact = s->fact;
    s->row = calloc((size_t)fact->rows + 1, sizeof *s->row);
    for (int e = 0; e < fact->experts; e++) {
        for (int64_t i = fact->bounds[e]; i < fact->bounds[e + 1]; i++) {
            int64_t token = fact->slot[i] / fact->top_k;
            if (token >= s->own->first_token && token < s->own->first_token + s->own->tokens) s->row[s->rows++] = i;
        }
    }
}

/* The column of a member's counts that says what it has from the source. */
static int column_of(const struct source *s, const struct dispatch_fact *there)
{
    return s->own->everywhere ? there->me : s->own->me;
}

/* Where in a member's rows those of rank `column` for its expert e begin, in the order of experts and in that of ranks. */
static int64_t begin_by_expert(const struct dispatch_fact *there, int column, int e)
{
    int64_t at = 0;
    for (int m = 0; m < there->members; m++) {
        for (int i = 0; i < there->experts; i++) at += i < e || (i == e && m < column) ? there->arrived[m * there->experts + i] : 0;
    }
    return at;
}

static int64_t begin_by_rank(const struct dispatch_fact *there, int column, int e)
{
    int64_t at = 0;
    for (int i = 0; i < column * there->experts + e; i++) at += there->arrived[i];
    return at;
}

/* Where everybody has the same tokens: did this member come to the layer with others' (a consequence, not a cause)? */
static bool came_with_others(const struct source *s, const struct routing_fact *there)
{
    if (!s->own->everywhere || there->tokens != s->fact->tokens) return false;
    for (int64_t t = 0; t < there->tokens; t++) {
        if (there->normed[t] != s->fact->normed[t]) return true;
    }
    return false;
}

/* Has it the source's rows for another place's experts? */
static bool is_of_another_place(const struct source *s, const struct dispatch_fact *there)
{
    for (int m = 0; m < s->own->members; m++) {
        bool same = m != there->me;
        for (int e = 0; e < there->experts && same; e++)
            same = s->own->sent[m * there->experts + e] == there->arrived[column_of(s, there) * there->experts + e];
        if (same) return true;
    }
    return false;
}

static bool counts_agree(const struct source *s, const struct routing_fact *there)
{
    const struct dispatch_fact *d = &there->dispatch;
    for (int e = 0; e < d->experts; e++) {
        int64_t due = s->own->sent[d->first + e], got = d->arrived[column_of(s, d) * d->experts + e];
        check_value(s->output, (double)llabs(due - got), 0);
        if (due == got) continue;
        bool placed = is_of_another_place(s, d);
        const struct site *site = placed ? &site_ep_coordinate : s->own->one_by_one ? &site_ep_counts : s->own->everywhere ? &site_moe_scores : &site_ep_map;
        routing_find(s->e, s->output, site, s->rank, s->fact, placed ? "other-place" : "counts",
                     (double)due, (double)got, "it has %lld rows for expert %d, and the expert's rank, %d, takes it to have %lld", (long long)due, d->first + e,
                     s->own->ranks[d->me], (long long)got);
        return false;
    }
    return true;
}

/* Does each own row go back to the token that it is of? Where not, what others take rows to be is a consequence. */
static bool rows_go_home(const struct source *s)
{
    for (int64_t i = 0; i < s->rows; i++) {
        if (s->fact->back[s->row[i]] != s->fact->slot[s->row[i]]) return false;
    }
    return true;
}

static bool is_same(double a, double b)
{
    return a == b || (isnan(a) && isnan(b));
}

/* Are an expert's rows, on this rank, those that arrived for it? */
static void check_slots(const struct source *s)
{
    for (int e = 0; e < s->own->experts; e++) {
        int64_t due = 0, got = s->fact->computed[s->own->first + e];
        for (int m = 0; m < s->own->members; m++) due += s->own->arrived[m * s->own->experts + e];
        check_value(s->output, (double)llabs(due - got), 0);
        if (due == got) continue;
        routing_find(s->e, s->output, &site_ep_empty_slots, s->rank, s->fact, "offset", (double)due, (double)got,
                     "expert %d is given %lld rows where %lld arrived for it", s->own->first + e, (long long)got, (long long)due);
        return;
    }
}

static int64_t rows_sent_to(const struct source *s, int member)
{
    int64_t sum = 0;
    for (int e = 0; e < s->own->experts; e++) sum += s->own->sent[member * s->own->experts + e];
    return sum;
}

/* Does it send as many rows' gradients back to each member as it has rows of it? */
static void check_returned(const struct source *s)
{
    for (int m = 0; s->own->returned && m < s->own->members; m++) {
        int64_t due = 0, got = s->own->returned[m];
        for (int e = 0; e < s->own->experts; e++) due += s->own->arrived[m * s->own->experts + e];
        check_value(s->output, (double)llabs(due - got), 0);
        if (due == got) continue;
        bool sent = got == rows_sent_to(s, m);
        routing_find(s->e, s->output, &site_ep_grad_splits, s->rank, s->fact, sent ? "not-swapped" : "counts", (double)due, (double)got,
                     "it sends the gradient of %lld rows back to rank %d, of which it has %lld%s", (long long)got, s->own->ranks[m], (long long)due,
                     sent ? ": as many as it sent there" : "");
        return;
    }
}

/* Tp ranks with the same tokens: has each token's rows one of them alone? */
static void check_shares(const struct source *s)
{
    const struct layout *layout = &s->e->parallel->config.layout;
    int64_t due = dispatch_tokens_due(layout, s->fact->tokens, s->own->me);
    check_value(s->output, (double)llabs(due - s->own->tokens), 0);
    if (due == s->own->tokens) return;
    routing_find(s->e, s->output, &site_ep_token_share, s->rank, s->fact, s->own->tokens > due ? "duplicate-tokens" : "lost", (double)due, (double)s->own->tokens,
                 "it sends the rows of %lld tokens where %lld are its own: ranks of tp with the same tokens share them out", (long long)s->own->tokens, (long long)due);
}

/* ---- one by one ---- */

/* From one place to the next: at the source, or at the expert's rank in the order of ranks or of experts. */
enum stand { AT_SOURCE, BY_RANK, BY_EXPERT };
struct way { const struct site *site; enum dispatch_stage from, to; enum stand from_place, to_place; const char *what; };

static const double *tags_of(const struct dispatch_fact *d, enum dispatch_stage stage, int64_t last)
{
    return last < d->rows[stage] ? d->tags[stage] : NULL;
}

static bool is_another(const double *tags, int64_t count, double tag)
{
    for (int64_t i = 0; i < count; i++) {
        if (tags[i] == tag) return true;
    }
    return false;
}

/* The source's rows for one expert, on one way between it and the expert's rank. */
static bool check_way(const struct source *s, const struct routing_fact *there, int e, int64_t own_at, const struct way *way)
{
    const struct dispatch_fact *d = &there->dispatch, *from = way->from_place == AT_SOURCE ? s->own : d, *to = way->to_place == AT_SOURCE ? s->own : d;
    const int64_t begin[] = {own_at, begin_by_rank(d, column_of(s, d), e), begin_by_expert(d, column_of(s, d), e)};
    int64_t count = s->own->sent[d->first + e], from_at = begin[way->from_place], to_at = begin[way->to_place];
    const double *sent = tags_of(from, way->from, from_at + count - 1), *got = tags_of(to, way->to, to_at + count - 1);
    for (int64_t i = 0; i < count && sent && got; i++) {
        double a = sent[from_at + i], b = got[to_at + i];
        check_value(s->output, !is_same(a, b), 0);
        if (is_same(a, b)) continue;
        bool other = is_another(sent, from->rows[way->from], b);
        routing_find(s->e, s->output, way->site, s->rank, s->fact, isnan(b) ? "missing" : other ? "other-row" : "altered", a, b,
                     "%s of choice %d of token %lld, for expert %d on rank %d, %s", way->what, s->fact->slot[s->row[own_at + i]] % s->fact->top_k,
                     (long long)(s->fact->slot[s->row[own_at + i]] / s->fact->top_k), d->first + e, s->own->ranks[d->me],
                     isnan(b) ? "is not there" : other ? "is another row's" : "is not what it was before");
        return false;
    }
    return true;
}

static void check_one_by_one(const struct source *s, const struct routing_fact *const *there)
{
    static const struct way ways[] = {
        {&site_ep_dispatch, DISPATCH_SENT, DISPATCH_ARRIVED, AT_SOURCE, BY_RANK, "what arrives"},
        {&site_ep_index_bits, DISPATCH_ARRIVED, DISPATCH_READ, BY_RANK, BY_EXPERT, "what the expert reads"},
        {&site_ep_restore_order, DISPATCH_GAVE, DISPATCH_LEAVES, BY_EXPERT, BY_RANK, "what is sent back"},
        {&site_ep_combine, DISPATCH_LEAVES, DISPATCH_HOME, BY_RANK, AT_SOURCE, "what comes back"},
        {&site_ep_combine_grad, DISPATCH_GRAD_SENT, DISPATCH_GRAD_ARRIVED, AT_SOURCE, BY_RANK, "the gradient of the result"},
        {&site_ep_index_bits, DISPATCH_GRAD_ARRIVED, DISPATCH_GRAD_READ, BY_RANK, BY_EXPERT, "the gradient that the expert reads"},
        {&site_ep_restore_order, DISPATCH_GRAD_GAVE, DISPATCH_GRAD_LEAVES, BY_EXPERT, BY_RANK, "the gradient that is sent back"},
        {&site_ep_dispatch_grad, DISPATCH_GRAD_LEAVES, DISPATCH_GRAD_HOME, BY_RANK, AT_SOURCE, "the gradient that comes back"},
    };
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
        int64_t own_at = 0;
        bool good = true;
        for (int m = 0; m < s->own->members && good; m++) {
            const struct dispatch_fact *d = &there[m]->dispatch;
            for (int e = 0; e < d->experts && good; e++) {
                good = check_way(s, there[m], e, own_at, &ways[w]);
                own_at += s->own->sent[d->first + e];
            }
        }
    }
}

/* ---- sums ---- */

/* What is due of a row that its expert's rank has: exact. */
static bool expect_row(const struct source *s, int64_t row, const struct site *site, double due, double got, const char *what)
{
    check_value(s->output, !is_same(due, got), 0);
    if (is_same(due, got)) return true;
    routing_find(s->e, s->output, site, s->rank, s->fact, isnan(got) ? "missing" : got == 0 ? "zeros" : "altered", due, got, "%s of choice %d of token %lld is %.9g where %.9g is due",
                 what, s->fact->slot[row] % s->fact->top_k, (long long)(s->fact->slot[row] / s->fact->top_k), got, due);
    return false;
}

struct sums { double *result, *gradient, *result_size, *gradient_size; bool rows_good, grads_good; }; /* [tokens] */

/* What a tag may be off by after `roundings` of every element, with magnitudes adding up to `size`. Infinite: the numbers may have left the finite ones. */
static double rounding_of(const struct source *s, int roundings, double size)
{
    const struct precision *precision = &s->e->parallel->config.precision;
    double dim = s->e->config->model.dim, largest = fmin(format_traits[precision_activation(precision)].largest, format_traits[precision->residual].largest);
    if (!(size < largest)) return INFINITY;
    return (2 * roundings * precision_roundoff(precision) + 2 * dim * ldexp(1, -53)) * size + roundings * dim * precision_smallest(precision);
}

/* The gradient of a row's result: the token's, times the weight. */
static bool gradient_is_there(const struct source *s, const struct dispatch_fact *there, int64_t row, int64_t at)
{
    const struct dispatch_fact *from = s->own->everywhere ? there : s->own; /* nothing moves where everybody has it */
    int64_t token = s->fact->back[row] / s->fact->top_k - s->own->first_token;
    if (!from->tags[DISPATCH_GRAD_SENT] || !there->tags[DISPATCH_GRAD_READ] || at >= there->rows[DISPATCH_GRAD_READ] || token < 0 ||
        token >= from->rows[DISPATCH_GRAD_SENT]) return true;
    double due = there->weight[at] * from->tags[DISPATCH_GRAD_SENT][token], got = there->tags[DISPATCH_GRAD_READ][at];
    double weight = fabs(there->weight[at]), size = from->sizes[DISPATCH_GRAD_SENT][token];
    double limit = weight * rounding_of(s, 1, size) + rounding_of(s, 2, weight * size); /* on its way, and weighed */
    if (isinf(limit) || isnan(limit)) return true;
    bool good = fabs(got - due) <= limit;
    check_value(s->output, fabs(got - due), limit);
    if (good) return true;
    routing_find(s->e, s->output, &site_ep_combine_grad, s->rank, s->fact, isnan(got) ? "missing" : got == 0 ? "zeros" : "altered", due, got,
                 "the gradient of the result of choice %d of token %lld, at rank %d, is not the token's times the weight", s->fact->slot[row] % s->fact->top_k,
                 (long long)(s->fact->slot[row] / s->fact->top_k), s->own->ranks[there->me]);
    return false;
}

/* Rows at their experts, and what they add up to. */
static void add_rows(const struct source *s, const struct routing_fact *there, int e, int64_t own_at, struct sums *sums)
{
    const struct dispatch_fact *d = &there->dispatch;
    int64_t count = s->own->sent[d->first + e], at = begin_by_expert(d, column_of(s, d), e), last = at + count - 1;
    const double *read = tags_of(d, DISPATCH_READ, last), *gave = tags_of(d, DISPATCH_GAVE, last), *gradient = tags_of(d, DISPATCH_GRAD_GAVE, last);
    for (int64_t i = 0; i < count && read && gave; i++) {
        int64_t row = s->row[own_at + i], slot = s->fact->back[row];
        if (sums->rows_good) {
            sums->rows_good = expect_row(s, row, s->own->everywhere ? &site_moe_dispatch : &site_ep_dispatch, s->fact->normed[s->fact->from[row]], read[at + i], "what the expert reads") &&
                              expect_row(s, row, &site_ep_map, s->fact->weight[slot], d->weight[at + i], "the weight") &&
                              (!s->fact->backward || !s->fact->gate_due || !d->gate ||
                               expect_row(s, row, &site_ep_gate_grad, d->gate[at + i], s->fact->gate_due[slot], "the gradient of the weight"));
        }
        if (sums->grads_good && s->fact->backward) sums->grads_good = gradient_is_there(s, d, row, at + i);
        sums->result[slot / s->fact->top_k] += d->weight[at + i] * gave[at + i];
        sums->result_size[slot / s->fact->top_k] += fabs(d->weight[at + i]) * d->sizes[DISPATCH_GAVE][at + i];
        if (!gradient) continue;
        sums->gradient[s->fact->from[row]] += gradient[at + i];
        sums->gradient_size[s->fact->from[row]] += d->sizes[DISPATCH_GRAD_GAVE][at + i];
    }
}

static void expect_sums(const struct source *s, const struct site *site, enum dispatch_stage stage, const double *due, const double *size, const char *what)
{
    int roundings = s->own->members + s->fact->top_k + 2;
    const double *home = s->own->tags[stage];
    for (int64_t i = 0; home && i < s->own->tokens && i < s->own->rows[stage]; i++) {
        double expected = due[s->own->first_token + i], by = fabs(expected - home[i]), limit = rounding_of(s, roundings, size[s->own->first_token + i]);
        if (isinf(limit)) continue;
        check_value(s->output, by, limit);
        if (by <= limit) continue;
        routing_find(s->e, s->output, site, s->rank, s->fact, isnan(home[i]) ? "missing" : "altered", expected, home[i],
                     "%s of token %lld is not the sum of its experts' parts, by %.3g of their magnitudes", what, (long long)(s->own->first_token + i),
                     by / fmax(size[s->own->first_token + i], 1e-300));
        return;
    }
}

/* Behind the sum nothing more is added. */
static void check_complete(const struct source *s)
{
    for (int64_t t = s->own->first_token; s->own->tags[DISPATCH_HOME] && t < s->own->first_token + s->own->tokens; t++) {
        double due = s->own->tags[DISPATCH_HOME][t - s->own->first_token], by = fabs(s->fact->routed[t] - due), limit = rounding_of(s, 2, s->fact->routed_size[t]);
        if (isinf(limit) || isnan(by)) continue;
        check_value(s->output, by, limit);
        if (by <= limit) continue;
        bool again = dispatch_is_summed_again(s->e, s->rank, s->fact, t);
        routing_find(s->e, s->output, again ? &site_ep_output_complete : &site_moe_combine, s->rank, s->fact, again ? "times-ranks" : "altered", due, s->fact->routed[t],
                     "what token %lld gets of its experts is not their sum that came home%s", (long long)t, again ? ": it is added up over the ranks again" : "");
        return;
    }
}

static void check_summed(const struct source *s, const struct routing_fact *const *there)
{
    size_t tokens = (size_t)s->fact->tokens + 1;
    double *all = calloc(4 * tokens, sizeof(double));
    struct sums sums = {all, all + tokens, all + 2 * tokens, all + 3 * tokens, true, true};
    int64_t own_at = 0;
    for (int m = 0; m < s->own->members; m++) {
        const struct dispatch_fact *d = &there[m]->dispatch;
        for (int e = 0; e < d->experts; e++) {
            add_rows(s, there[m], e, own_at, &sums);
            own_at += s->own->sent[d->first + e];
        }
    }
    expect_sums(s, &site_ep_combine, DISPATCH_HOME, sums.result, sums.result_size, "the result");
    if (s->fact->backward) expect_sums(s, &site_ep_dispatch_grad, DISPATCH_GRAD_HOME, sums.gradient, sums.gradient_size, "the gradient");
    free(all);
}

/* ---- copies ---- */

/* A number of each token, or of each of its choices, against the rank's that sent its rows. */
static bool check_run(const struct source *s, const struct routing_fact *other, const struct site *site, const double *here, const double *there, int each, const char *what)
{
    int64_t first = other->dispatch.first_token * each, count = other->dispatch.tokens * each;
    for (int64_t i = first; here && there && i < first + count; i++) {
        check_value(s->output, !is_same(here[i], there[i]), 0);
        if (is_same(here[i], there[i])) continue;
        routing_find(s->e, s->output, site, s->rank, s->fact, here[i] == 0 ? "zeros" : "altered", there[i], here[i], "%s token %lld is not what the rank has that sent its rows", what,
                     (long long)(i / each));
        return false;
    }
    return true;
}

static void check_copies(const struct source *s)
{
    bool good[3] = {true, true, true};
    for (int c = 0; c < s->own->copies; c++) {
        const struct routing_fact *other = fact_at(s, s->own->copy_ranks[c]);
        if (!other) continue;
        if (good[0]) good[0] = check_run(s, other, &site_ep_token_gather, s->fact->routed, other->routed, 1, "what experts give");
        if (good[1]) good[1] = check_run(s, other, &site_ep_gate_grad_gather, s->fact->gate_due, other->gate_due, s->fact->top_k, "the gradient of a weight of");
        if (good[2]) good[2] = check_run(s, other, &site_ep_token_grad_gather, s->own->gathered, other->dispatch.gathered, 1, "what experts add to the gradient of");
    }
}

/* Has each member the experts of its place? Where not, shard-cover says whose, and there is no telling who is to have a row. */
static bool places_are_due(const struct source *s)
{
    for (int m = 0; m < s->own->members; m++) {
        const struct routing_fact *there = fact_at(s, s->own->ranks[m]);
        if (there && there->dispatch.first != m * (s->fact->experts / s->own->members)) return false;
    }
    return true;
}

void conservation_dispatch(const struct evidence *e, struct check_output *output, const struct rank_record *rank, const struct routing_fact *fact)
{
    struct source s = {.e = e, .output = output, .rank = rank, .fact = fact, .own = &fact->dispatch};
    if (s.own->members <= 0 || !places_are_due(&s)) return;
    find_own_rows(&s);
    const struct routing_fact **there = calloc((size_t)s.own->members, sizeof *there);
    bool all = s.own->one_by_one || rows_go_home(&s);
    for (int m = 0; m < s.own->members; m++) {
        there[m] = fact_at(&s, s.own->ranks[m]);
        all = all && there[m] && there[m]->dispatch.members == s.own->members && !came_with_others(&s, there[m]) && counts_agree(&s, there[m]);
    }
    if (all && s.own->one_by_one) check_one_by_one(&s, there);
    else if (all) check_summed(&s, there);
    if (!s.own->one_by_one) check_complete(&s);
    check_copies(&s);
    check_slots(&s);
    check_returned(&s);
    check_shares(&s);
    free(s.row);
    free(there);
}

const struct routing_fact *dispatch_row_at(const struct evidence *e, const struct rank_record *rank, const struct routing_fact *fact, int64_t row, int64_t *ret_at)
{
    struct source s = {.e = e, .rank = rank, .fact = fact, .own = &fact->dispatch};
    int64_t token = fact->slot[row] / fact->top_k, before = 0;
    if (s.own->members == 0 || s.own->experts == 0 || token < s.own->first_token || token >= s.own->first_token + s.own->tokens) return NULL;
    int expert = 0;
    while (fact->bounds[expert + 1] <= row) expert++;
    for (int64_t i = fact->bounds[expert]; i < row; i++) {
        int64_t other = fact->slot[i] / fact->top_k;
        before += other >= s.own->first_token && other < s.own->first_token + s.own->tokens;
    }
    const struct routing_fact *there = fact_at(&s, s.own->ranks[expert / s.own->experts]);
    if (!there || there->dispatch.members != s.own->members) return NULL;
    int here = expert - there->dispatch.first; /* where it has another number of them, there is no telling which is which */
    if (here < 0 || here >= there->dispatch.experts || there->dispatch.arrived[column_of(&s, &there->dispatch) * there->dispatch.experts + here] != s.own->sent[expert]) return NULL;
    *ret_at = begin_by_expert(&there->dispatch, column_of(&s, &there->dispatch), expert - there->dispatch.first) + before;
    return *ret_at < there->dispatch.rows[DISPATCH_READ] && *ret_at < there->dispatch.rows[DISPATCH_GAVE] ? there : NULL;
}

/* What the experts gave a rank for a token; NAN: it had no part of it. */
static double given(const struct routing_fact *fact, int64_t token)
{
    const struct dispatch_fact *d = &fact->dispatch;
    double sum = 0;
    if (token < d->first_token || token >= d->first_token + d->tokens) return NAN;
    if (!d->one_by_one) return d->tags[DISPATCH_HOME] && token - d->first_token < d->rows[DISPATCH_HOME] ? d->tags[DISPATCH_HOME][token - d->first_token] : NAN;
    for (int64_t i = 0; i < fact->rows; i++) {
        if (fact->back[i] / fact->top_k == token) sum += fact->weight[fact->back[i]] * fact->out[i];
    }
    return sum;
}

bool dispatch_is_summed_again(const struct evidence *e, const struct rank_record *rank, const struct routing_fact *fact, int64_t token)
{
    struct source s = {.e = e, .rank = rank, .fact = fact, .own = &fact->dispatch};
    const struct layout *layout = &e->parallel->config.layout;
    int count = layout->tp > 1 ? layout->tp : fact->dispatch.members;
    double sum = 0, size = 0;
    if (count < 2) return false;
    for (int m = 0; m < count; m++) {
        const struct routing_fact *there = fact_at(&s, layout->tp > 1 ? rank->rank - rank->tp + m : fact->dispatch.ranks[m]);
        double part = there && token < there->tokens ? given(there, token) : NAN;
        if (isnan(part) && isnan(part = given(fact, token))) return false; /* it has others of the same tokens */
        sum += part;
        size += fabs(part);
    }
    return fabs(fact->routed[token] - sum) <= 32 * precision_roundoff(&e->parallel->config.precision) * (size + fact->routed_size[token]);
}
