/* test_ledger: origin and scale ledgers, and the sites at which deviations fall due. */
#include "sim/ledger.h"
#include "sim/random.h"
#include "sim/site.h"
#include "tests/support/run_suite.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- ledger: against a dense table of all origins of a small world ---- */

enum { STEPS = 2, RANKS = 5, MICROBATCHES = 7, PARTS = 3, WORLD = STEPS * RANKS * MICROBATCHES * PARTS };

static struct origin origin_of(int i) /* in ledger order, the first step and rank negative */
{
    return (struct origin){i / (RANKS * MICROBATCHES * PARTS) - 1, i / (MICROBATCHES * PARTS) % RANKS - 1,
                           i / PARTS % MICROBATCHES, i % PARTS};
}

struct table { int64_t times[WORLD]; double weight[WORLD]; bool present[WORLD]; };

static void table_add(struct table *to, const struct table *from)
{
    for (int i = 0; i < WORLD; i++) {
        to->times[i] += from->times[i];
        to->weight[i] += from->weight[i];
        to->present[i] |= from->present[i];
    }
}

/* Sorted, one term an origin, right multiplicities, times * scale = the weight, tag_sum as defined. */
static void check_equal(const struct ledger *ledger, const struct table *table)
{
    int present = 0;
    uint64_t tags = 0;
    for (int i = 0; i < WORLD; i++) {
        const struct ledger_term *term = ledger_find(ledger, origin_of(i));
        ck_assert_int_eq(term != NULL, table->present[i]);
        if (term == NULL)
            continue;
        present++;
        tags += ledger_tag(origin_of(i)) * (uint64_t)table->times[i];
        ck_assert_int_eq(term->times, table->times[i]);
        if (term->times == 0)
            ck_assert_double_eq(term->scale, 0);
        else
            ck_assert_double_le(fabs(term->times * term->scale - table->weight[i]), 1e-12);
    }
    ck_assert_int_eq(ledger->count, present);
    ck_assert_uint_eq(ledger->tag_sum, tags);
    for (int i = 1; i < ledger->count; i++)
        ck_assert_int_lt(origin_compare(ledger->terms[i - 1].origin, ledger->terms[i].origin), 0);
}

static void fill(struct ledger *ledger, struct table *table, struct random_stream *stream, int terms)
{
    for (int k = 0; k < terms; k++) {
        int i = (int)random_below(stream, WORLD);
        int32_t times = (int32_t)random_below(stream, 3) + 1;
        double scale = random_unit(stream);
        ledger_add_term(ledger, origin_of(i), times, scale);
        table->times[i] += times;
        table->weight[i] += times * scale;
        table->present[i] = true;
    }
}

/* Terms in any order, sums of ledgers of any overlap (none, empty, all): always what the table says. */
START_TEST(ledger_equals_table)
{
    struct random_stream stream = random_stream(4, "ledger");
    for (int round = 0; round < 61; round++) {
        struct ledger a, b;
        struct table ta = {0}, tb = {0};
        ledger_init(&a);
        ledger_init(&b);
        fill(&a, &ta, &stream, round * 11 % 67);
        fill(&b, &tb, &stream, round * 5 % 59);
        check_equal(&a, &ta);
        ledger_add(&a, &b);
        table_add(&ta, &tb);
        check_equal(&a, &ta);
        check_equal(&b, &tb);
        ledger_copy(&b, &a);
        check_equal(&b, &ta);
        ledger_clear(&a);
        check_equal(&a, &(struct table){0});
        ledger_done(&a);
        ledger_done(&b);
    }
}
END_TEST

/* Merging: times add, the scale is the mean by multiplicity, and 0 where nothing is left. */
START_TEST(ledger_merges_scales)
{
    struct ledger ledger;
    ledger_init(&ledger);
    struct origin origin = {3, 1, 2, 0};
    ledger_add_term(&ledger, origin, 1, 0.25);
    ledger_add_term(&ledger, origin, 3, 0.75);
    ck_assert_int_eq(ledger.count, 1);
    ck_assert_int_eq(ledger.terms[0].times, 4);
    ck_assert_double_eq(ledger.terms[0].scale, 0.625);
    ledger_scale(&ledger, -2);
    ck_assert_double_eq(ledger.terms[0].scale, -1.25);
    ck_assert_int_eq(ledger.terms[0].times, 4);
    ck_assert_uint_eq(ledger.tag_sum, 4 * ledger_tag(origin)); /* scaling is no multiplicity */
    ledger_add_term(&ledger, origin, -4, 9);
    ck_assert_int_eq(ledger.terms[0].times, 0);
    ck_assert_double_eq(ledger.terms[0].scale, 0);
    ck_assert_uint_eq(ledger.tag_sum, 0);
    ledger_done(&ledger);
}
END_TEST

/* A buffer added to itself holds everything twice; copied onto itself nothing changes. */
START_TEST(ledger_aliases)
{
    struct ledger ledger;
    struct table table = {0};
    struct random_stream stream = random_stream(5, "alias");
    ledger_init(&ledger);
    fill(&ledger, &table, &stream, 31);
    ledger_copy(&ledger, &ledger);
    check_equal(&ledger, &table);
    ledger_add(&ledger, &ledger);
    table_add(&table, &(struct table){0});
    for (int i = 0; i < WORLD; i++) {
        table.times[i] *= 2;
        table.weight[i] *= 2;
    }
    check_equal(&ledger, &table);
    ledger_done(&ledger);
    ledger_done(NULL);
}
END_TEST

/* Equal scales stay that scale to the last bit in any sum, and a count that doubles without end (a
 * buffer added to itself each time) stops at its limit. */
START_TEST(ledger_exact_and_bounded)
{
    struct ledger ledger;
    ledger_init(&ledger);
    ledger_add_term(&ledger, origin_of(3), 2, 0.1);
    ledger_add_term(&ledger, origin_of(3), 1, 0.1);
    for (int i = 0; i < 41; i++)
        ledger_add(&ledger, &ledger);
    ck_assert_double_eq(ledger.terms[0].scale, 0.1);
    ck_assert_int_eq(ledger.terms[0].times, INT32_MAX);
    ck_assert_uint_eq(ledger.tag_sum, ledger_tag(origin_of(3)) * 3 << 41);
    ledger_done(&ledger);
}
END_TEST

/* Equal multisets have equal tag sums in whatever order and grouping they were added; one contribution
 * lost, doubled or taken from elsewhere changes the sum. */
START_TEST(ledger_tags_tell_multisets)
{
    int order[WORLD];
    struct random_stream stream = random_stream(6, "tags");
    uint64_t whole = 0, tags[WORLD];
    for (int i = 0; i < WORLD; i++) {
        order[i] = i;
        tags[i] = ledger_tag(origin_of(i));
        whole += tags[i];
    }
    for (int round = 0; round < 5; round++) {
        struct ledger parts[3];
        random_shuffle(&stream, order, WORLD);
        for (int p = 0; p < 3; p++)
            ledger_init(&parts[p]);
        for (int k = 0; k < WORLD; k++)
            ledger_add_term(&parts[k % 3], origin_of(order[k]), 1, 1);
        ledger_add(&parts[1], &parts[2]);
        ledger_add(&parts[0], &parts[1]);
        ck_assert_uint_eq(parts[0].tag_sum, whole);
        for (int p = 0; p < 3; p++)
            ledger_done(&parts[p]);
    }
    for (int i = 0; i < WORLD; i++) {
        ck_assert_uint_ne(tags[i], 0);
        for (int j = 0; j < i; j++)
            ck_assert_uint_ne(tags[i], tags[j]);
    }
}
END_TEST

/* The order of origins: step before rank before micro-batch before part, signed. */
START_TEST(origin_order)
{
    for (int i = 0; i < WORLD; i++)
        for (int j = 0; j < WORLD; j++)
            ck_assert_int_eq((i > j) - (i < j), origin_compare(origin_of(i), origin_of(j)));
    struct origin low = {INT32_MIN, 0, 0, 0}, high = {INT32_MAX, 0, 0, 0};
    ck_assert_int_lt(origin_compare(low, high), 0);
}
END_TEST

/* ---- sites ---- */

static const struct site scale_site = {"pp.loss.scale", SITE_FACTOR, "pp.loss", 0, "the loss scale"};
static const struct site other_site = {"fsdp.grad_divisor", SITE_FACTOR, "fsdp", 0, "the divisor"};
static const struct deviation times_deviation = {"times", SITE_FACTOR, 0, "multiplied"};

static struct armed armed_at(const struct site *site)
{
    return (struct armed){.site = site, .deviation = &times_deviation};
}

static struct where where_of(int rank)
{
    struct where where = WHERE_NONE;
    where.rank = rank;
    return where;
}

/* A healthy run passes every site without effect, with a plan and without. */
START_TEST(site_healthy)
{
    struct site_plan *plan = site_plan_new(3);
    ck_assert_ptr_null(site_pass(plan, &scale_site, where_of(1)));
    ck_assert_ptr_null(site_peek(plan, &scale_site, WHERE_NONE));
    ck_assert_ptr_null(site_pass(NULL, &scale_site, where_of(1)));
    ck_assert_ptr_null(site_peek(NULL, &scale_site, where_of(1)));
    site_plan_free(plan);
    site_plan_free(NULL);
}
END_TEST

/* Each of the six lists: empty is everywhere, otherwise exactly its members, and never "does not apply". */
START_TEST(site_lists)
{
    for (int field = 0; field < 6; field++) {
        struct armed armed = armed_at(&scale_site);
        struct at_list *lists[] = {&armed.rank, &armed.stage, &armed.step, &armed.microbatch, &armed.layer, &armed.hop};
        *lists[field] = (struct at_list){.count = 3, .values = {2, 0, 5}};
        struct site_plan *plan = site_plan_new(7);
        site_plan_arm(plan, &armed);
        memset(&armed, 0xEE, sizeof armed); /* it was copied */
        for (int value = -1; value < 7; value++) {
            struct where where = where_of(3);
            int *values[] = {&where.rank, &where.stage, &where.step, &where.microbatch, &where.layer, &where.hop};
            *values[field] = value;
            bool due = value == 2 || value == 0 || value == 5;
            ck_assert_int_eq(site_peek(plan, &scale_site, where) != NULL, due);
            if (value >= 0 || field > 0)
                ck_assert_int_eq(site_pass(plan, &scale_site, where) != NULL, due);
            ck_assert_ptr_null(site_pass(plan, &other_site, where));
        }
        ck_assert_uint_eq(site_hits(plan, 0), 3); /* peeking did not count */
        site_plan_free(plan);
    }
}
END_TEST

/* Parameter patterns: none, exact, and a prefix with a star; no parameter matches only "none". */
START_TEST(site_params)
{
    const char *names[] = {NULL, "layers.1.wq", "layers.1.wq2", "layers.2.wq", "layers."};
    const struct { const char *pattern; int due[5]; } cases[] = {
        {"", {1, 1, 1, 1, 1}},          {"layers.1.wq", {0, 1, 0, 0, 0}}, {"layers.1.wq*", {0, 1, 1, 0, 0}},
        {"layers.*", {0, 1, 1, 1, 1}},  {"*", {0, 1, 1, 1, 1}},           {"layers.*.wq", {0, 0, 0, 0, 0}},
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        struct armed armed = armed_at(&scale_site);
        snprintf(armed.param, sizeof armed.param, "%s", cases[c].pattern);
        struct site_plan *plan = site_plan_new(1);
        site_plan_arm(plan, &armed);
        for (int n = 0; n < 5; n++) {
            struct where where = where_of(0);
            where.param = names[n];
            ck_assert_int_eq(site_pass(plan, &scale_site, where) != NULL, cases[c].due[n]);
        }
        site_plan_free(plan);
    }
}
END_TEST

/* `once` is per rank; the first one armed that is due wins, and when it is used up the next one does;
 * hits are counted for each deviation and rank apart. */
START_TEST(site_once_and_order)
{
    struct site_plan *plan = site_plan_new(3);
    struct armed once = armed_at(&scale_site), always = armed_at(&scale_site), elsewhere = armed_at(&other_site);
    once.once = true;
    once.fault = 11;
    always.rank = (struct at_list){.count = 2, .values = {0, 2}};
    always.fault = 22;
    site_plan_arm(plan, &elsewhere);
    site_plan_arm(plan, &once);
    site_plan_arm(plan, &always);
    for (int pass = 0; pass < 4; pass++) {
        for (int rank = 0; rank < 3; rank++) {
            const struct armed *peeked = site_peek(plan, &scale_site, where_of(rank));
            const struct armed *due = site_pass(plan, &scale_site, where_of(rank));
            int fault = pass == 0 ? 11 : rank == 1 ? 0 : 22;
            ck_assert_ptr_eq(peeked, due);
            ck_assert_int_eq(due != NULL ? due->fault : 0, fault);
        }
    }
    ck_assert_uint_eq(site_hits(plan, 0), 0);
    ck_assert_uint_eq(site_hits(plan, 1), 3);
    ck_assert_uint_eq(site_hits(plan, 2), 6);
    ck_assert_uint_eq(site_covered(plan, 0), 0);
    ck_assert_uint_eq(site_covered(plan, 1), 0);
    ck_assert_uint_eq(site_covered(plan, 2), 2); /* at pass 0, where it is due, on ranks 0 and 2 */
    ck_assert_uint_eq(plan->hits[2 * 3 + 0], 3);
    ck_assert_uint_eq(plan->hits[2 * 3 + 1], 0);
    ck_assert_uint_eq(plan->hits[1 * 3 + 1], 1);
    site_plan_free(plan);
}
END_TEST

/* Every kind has a name. */
START_TEST(site_kinds_are_named)
{
    for (int i = 0; i < SITE_KIND_COUNT; i++)
        ck_assert(site_kind_names[i] != NULL && site_kind_names[i][0] != '\0');
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("ledger");
    TCase *tcase = tcase_create("ledger");
    tcase_set_timeout(tcase, 60);
    const TTest *tests[] = {
        ledger_equals_table, ledger_merges_scales, ledger_aliases,
        ledger_exact_and_bounded, ledger_tags_tell_multisets, origin_order,
        site_healthy, site_lists, site_params, site_once_and_order, site_kinds_are_named,
    };
    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++)
        tcase_add_test(tcase, tests[i]);
    suite_add_tcase(suite, tcase);
    return run_suite(suite, CK_NOFORK);
}
