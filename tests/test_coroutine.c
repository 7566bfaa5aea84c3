/* test_coroutine: switching, stack use, the guard below a stack, and running out of stacks, on each backend that
 * this build has (a looped test: _i is the backend). */
#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sim/coroutine.h"
#include "sim/machine.h"
#include "tests/support/run_suite.h"

static struct error error;

struct counting { struct coroutine *coroutine; int steps, limit; };

static void count_main(void *argument)
{
    struct counting *counting = argument;
    double kept = 0.5; /* lives across switches */
    while (counting->steps < counting->limit) {
        counting->steps++;
        kept += 1;
        coroutine_park(counting->coroutine);
    }
    ck_assert(kept == 0.5 + counting->limit);
}

/* Proves: several coroutines interleave, each keeps its own frame, and each ends exactly once. */
START_TEST(test_coroutine_interleave)
{
    struct stack_pool *pool = stack_pool_new(70000, coroutine_backend_at(_i));
    struct counting counting[5];
    for (int i = 0; i < 5; i++) {
        counting[i] = (struct counting){.limit = 3 * i};
        counting[i].coroutine = coroutine_new(pool, count_main, &counting[i], &error);
        ck_assert_ptr_nonnull(counting[i].coroutine);
    }
    for (int resumes = 1; resumes <= 13; resumes++) {
        for (int i = 0; i < 5; i++) {
            if (!coroutine_ended(counting[i].coroutine))
                coroutine_resume(counting[i].coroutine);
            ck_assert_int_eq(counting[i].steps, resumes < 3 * i ? resumes : 3 * i);
            ck_assert_int_eq(coroutine_ended(counting[i].coroutine), resumes > 3 * i);
        }
    }
    for (int i = 0; i < 5; i++)
        coroutine_free(counting[i].coroutine);
    stack_pool_free(pool);
}
END_TEST

static __attribute__((noinline)) void touch_stack(size_t bytes)
{
    char data[bytes];
    memset(data, 0x5a, bytes);
    __asm__ __volatile__("" : : "r"(data) : "memory");
}

static void deep_main(void *argument)
{
    struct counting *counting = argument;
    touch_stack((size_t)counting->limit);
    coroutine_park(counting->coroutine); /* and never again: it is dropped while parked */
}

/* Proves: the fill pattern measures the stack, also on a stack that was used before; a coroutine may be
 * dropped parked, or before it started. */
START_TEST(test_coroutine_stack_used)
{
    struct stack_pool *pool = stack_pool_new(100000, coroutine_backend_at(_i));
    struct counting deep = {.limit = 50000}, shallow = {.limit = 300};
    deep.coroutine = coroutine_new(pool, deep_main, &deep, &error);
    size_t unused = coroutine_stack_used(deep.coroutine);
    ck_assert_uint_eq(unused, 0);
    coroutine_resume(deep.coroutine);
    size_t used = coroutine_stack_used(deep.coroutine); /* 0 under valgrind */
    ck_assert(used == 0 || (used >= 50000 && used < 70000));
    coroutine_free(deep.coroutine);
    shallow.coroutine = coroutine_new(pool, deep_main, &shallow, &error);
    ck_assert_ptr_eq(shallow.coroutine, deep.coroutine); /* the pool gives the same stack again */
    ck_assert_uint_eq(coroutine_stack_used(shallow.coroutine), 0);
    coroutine_resume(shallow.coroutine);
    ck_assert_uint_lt(coroutine_stack_used(shallow.coroutine), 50000);
    coroutine_free(shallow.coroutine);
    coroutine_free(coroutine_new(pool, deep_main, &deep, &error));
    coroutine_free(NULL);
    stack_pool_free(pool);
    stack_pool_free(NULL);
}
END_TEST

static __attribute__((noinline)) int recurse(volatile int *depth)
{
    volatile char frame[3000];
    frame[0] = (char)*depth;
    *depth += 1;
    return *depth < 1000000 ? recurse(depth) + frame[0] : 0;
}

static void overflow_main(void *argument)
{
    recurse(argument);
}

/* Proves: running over the end of a stack ends the process by a signal instead of writing elsewhere. */
START_TEST(test_coroutine_guard)
{
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        int depth = 0;
        struct rlimit none = {0, 0};
        setrlimit(RLIMIT_CORE, &none);
        signal(SIGSEGV, SIG_DFL); /* not the sanitizers' */
        signal(SIGBUS, SIG_DFL);
        struct stack_pool *pool = stack_pool_new(65536, coroutine_backend_at(_i));
        coroutine_resume(coroutine_new(pool, overflow_main, &depth, &error));
        _exit(0);
    }
    int status = 0;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_msg(WIFSIGNALED(status), "the child ended with status %#x", (unsigned)status);
    ck_assert(WTERMSIG(status) == SIGSEGV || WTERMSIG(status) == SIGBUS);
}
END_TEST

/* Proves: a stack that can't be mapped is an input error that names the limit; nothing leaks. */
START_TEST(test_coroutine_no_stack)
{
    struct error refused = {0};
    struct machine_options options = {.ranks = 3, .threads = 2, .stack_bytes = (size_t)1 << 55};
    ck_assert_ptr_null(machine_new(&options, &refused));
    ck_assert_int_eq(refused.kind, ERROR_INPUT);
    ck_assert_ptr_nonnull(strstr(refused.message, "stack number 1"));
    ck_assert_ptr_nonnull(strstr(refused.hint, "vm.max_map_count"));
}
END_TEST

/* Proves: a stack that was used by one backend, and is kept for the next pool, does not come back with another's
 * state. */
START_TEST(test_coroutine_backends_in_turn)
{
    for (int turn = 0; turn < 7; turn++) {
        for (int i = 0; coroutine_backend_at(i); i++) {
            struct stack_pool *pool = stack_pool_new(90000, coroutine_backend_at(i));
            struct counting counting = {.limit = 3 + turn};
            counting.coroutine = coroutine_new(pool, count_main, &counting, &error);
            for (int resumes = 0; resumes < 2 + turn; resumes++)
                coroutine_resume(counting.coroutine);
            ck_assert_int_eq(counting.steps, 2 + turn);
            coroutine_free(counting.coroutine);
            stack_pool_free(pool);
        }
    }
}
END_TEST

/* Proves: names are found, the first is the default, an unknown one isn't there, and the portable ones always are. */
START_TEST(test_coroutine_names)
{
    ck_assert_str_eq(coroutine_backend(NULL), coroutine_backend_at(0));
    ck_assert_ptr_nonnull(coroutine_backend("sigsetjmp"));
    ck_assert_ptr_nonnull(coroutine_backend("ucontext"));
    ck_assert_ptr_null(coroutine_backend("fiber"));
    ck_assert_ptr_null(coroutine_backend_missing("fiber"));
    ck_assert(!coroutine_backend("fcontext") == !!coroutine_backend_missing("fcontext"));
    int count = 0;
    for (; coroutine_backend_at(count); count++)
        ck_assert_str_eq(coroutine_backend(coroutine_backend_at(count)), coroutine_backend_at(count));
    ck_assert_int_ge(count, 2);
}
END_TEST

int main(void)
{
    int backends = 0;
    while (coroutine_backend_at(backends))
        backends++;
    Suite *suite = suite_create("coroutine");
    TCase *cases = tcase_create("coroutine");
    tcase_set_timeout(cases, 60);
    tcase_add_loop_test(cases, test_coroutine_interleave, 0, backends);
    tcase_add_loop_test(cases, test_coroutine_stack_used, 0, backends);
    tcase_add_loop_test(cases, test_coroutine_guard, 0, backends);
    tcase_add_test(cases, test_coroutine_backends_in_turn);
    tcase_add_test(cases, test_coroutine_names);
    tcase_add_test(cases, test_coroutine_no_stack);
    suite_add_tcase(suite, cases);
    return run_suite(suite, CK_NOFORK);
}
