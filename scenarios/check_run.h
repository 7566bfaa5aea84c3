/* check_run: which checks are taken, and running them into a result. */
#ifndef SCENARIOS_CHECK_RUN_H
#define SCENARIOS_CHECK_RUN_H

#include "scenarios/check.h"

enum { CHECKS_MAX = 64 };
struct check_selection { bool taken[CHECKS_MAX]; bool deep, listed; }; /* listed: those taken were named one by one */

/* "default", "deep", ids to take only those, "-id" to leave one out; comma-separated, "" and NULL = default.
 * An error of the input for an unknown id. */
bool check_select(const char *list, struct check_selection *ret_selection, struct error *error);

/* Fills checks and findings of the result, memory from its arena. Every check is listed once. */
void checks_run(const struct evidence *evidence, const struct check_selection *selection, struct result *result);

/* One check alone, for tests: findings into ret_findings (up to max), how many there are is returned. */
int check_run_alone(const struct check *check, const struct evidence *evidence, struct check_result *ret_result,
                    struct finding *ret_findings, int max);

#endif
