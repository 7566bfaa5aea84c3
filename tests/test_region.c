/* test_region: blocks never overlap, keep what is in them while others come, go and grow, and free neighbours become one. */
#include <check.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>

#include "sim/random.h"
#include "sim/region.h"
#include "sim/sanitizer.h"
#include "tests/support/run_suite.h"

struct held { uint64_t *at; size_t bytes; uint64_t id; };

/* Every word says whose it is and where in the block: a word of another block, or of another place, is seen. */
static uint64_t word(const struct held *h, size_t i)
{
    return h->id * UINT64_C(0x9e3779b97f4a7c15) + i;
}

static void fill(struct held *h, size_t from)
{
    for (size_t i = from / sizeof *h->at; i < h->bytes / sizeof *h->at; i++) h->at[i] = word(h, i);
}

static bool is_intact(const struct held *h)
{
    for (size_t i = 0; i < h->bytes / sizeof *h->at; i++) {
        if (h->at[i] != word(h, i)) return false;
    }
    return true;
}

enum { HELD = 37, TURNS = 3000 };

/* Returns what went wrong; NULL: nothing. */
static const char *churn(uint64_t seed)
{
    struct random_stream r = random_stream(seed, "regions");
    struct held held[HELD] = {0};
    uint64_t next = seed << 32;
    const char *wrong = NULL;
    for (int turn = 0; turn < TURNS && !wrong; turn++) {
        struct held *h = &held[random_below(&r, HELD)];
        if (!h->at) {
            *h = (struct held){.bytes = REGION_ALIGNMENT * (1 + (size_t)random_below(&r, turn % 50 ? 900 : 90000)), .id = ++next};
            h->at = region_take(h->bytes);
            if ((uintptr_t)h->at % REGION_ALIGNMENT != 0) wrong = "a block is not aligned";
            fill(h, 0);
        } else if (random_below(&r, 3) == 0) {
            size_t more = REGION_ALIGNMENT * (1 + (size_t)random_below(&r, 300)), before = h->bytes;
            if (region_grow(h->at, h->bytes, more)) h->bytes += more;
            fill(h, before);
        } else {
            if (!is_intact(h)) wrong = "a block was written to by another's owner";
            region_give(h->at, h->bytes);
            h->at = NULL;
        }
    }
    for (int i = 0; i < HELD; i++) {
        if (!held[i].at) continue;
        if (!is_intact(&held[i])) wrong = "a block was written to by another's owner";
        region_give(held[i].at, held[i].bytes);
    }
    return wrong;
}

START_TEST(blocks_are_apart)
{
    const char *wrong = churn((uint64_t)_i + 1);
    ck_assert_msg(wrong == NULL, "%s", wrong);
}
END_TEST

static void *churn_here(void *seed)
{
    return (void *)(uintptr_t)churn((uint64_t)(uintptr_t)seed);
}

START_TEST(threads_are_apart)
{
    pthread_t threads[3];
    for (uintptr_t t = 0; t < 3; t++) ck_assert_int_eq(pthread_create(&threads[t], NULL, churn_here, (void *)(t + 50)), 0);
    for (int t = 0; t < 3; t++) {
        void *wrong;
        pthread_join(threads[t], &wrong);
        ck_assert_msg(wrong == NULL, "%s", (const char *)wrong);
    }
}
END_TEST

#ifndef SANITIZER_ADDRESS
/* Given back in an order without neighbours, three blocks make room for one as long as all of them, where they lay. */
START_TEST(free_neighbours_join)
{
    enum { EACH = 5 * REGION_ALIGNMENT };
    char *wall[2], *blocks[3];
    wall[0] = region_take(EACH);
    for (int i = 0; i < 3; i++) blocks[i] = region_take(EACH);
    wall[1] = region_take(EACH);
    ck_assert_ptr_eq(blocks[2], blocks[0] + 2 * EACH); /* the lowest address that is free */
    ck_assert(!region_grow(blocks[0], EACH, REGION_ALIGNMENT)); /* its neighbour is in use */
    region_give(blocks[0], EACH);
    region_give(blocks[2], EACH);
    region_give(blocks[1], EACH);
    char *all = region_take(3 * EACH);
    ck_assert_ptr_eq(all, blocks[0]);
    region_give(all + EACH, 2 * EACH);
    ck_assert(region_grow(all, EACH, 2 * EACH));
    ck_assert(!region_grow(all, 3 * EACH, REGION_ALIGNMENT));
    region_give(all, 3 * EACH);
    region_give(wall[0], EACH);
    region_give(wall[1], EACH);
}
END_TEST
#endif

int main(void)
{
    Suite *suite = suite_create("region");
    TCase *blocks = tcase_create("blocks");
#ifndef SANITIZER_ADDRESS
    tcase_add_test(blocks, free_neighbours_join);
#endif
    tcase_add_loop_test(blocks, blocks_are_apart, 0, 4);
    tcase_add_test(blocks, threads_are_apart);
    suite_add_tcase(suite, blocks);
    return run_suite(suite, CK_NOFORK);
}
