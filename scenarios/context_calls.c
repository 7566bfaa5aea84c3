/* context_calls: what the calls of context parallelism cost, by the declared method. See below once its sites are there. */
#include "scenarios/context_checks.h"
void context_calls(const struct evidence *e, struct check_output *output)
{
    (void)e;
    check_skip(output, "not yet");
}
