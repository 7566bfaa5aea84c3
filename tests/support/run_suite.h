/* run_suite: what every test program ends with. */
#ifndef TESTS_SUPPORT_RUN_SUITE_H
#define TESTS_SUPPORT_RUN_SUITE_H

#include <check.h>

/* The program's exit status. CK_NOFORK: what ends the process, or is to be seen by a sanitizer, runs in a child that the test
 * makes itself. */
static inline int run_suite(Suite *suite, enum fork_status forks)
{
    SRunner *runner = srunner_create(suite);
    srunner_set_fork_status(runner, forks);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}

#endif
