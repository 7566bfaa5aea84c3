/* setup: options of the command line as what the experiment takes, checked before anything runs. */
#ifndef TOOLS_SETUP_H
#define TOOLS_SETUP_H

#include "scenarios/result.h"
#include "tools/options.h"

int setup_online_cpus(void);
struct scenario_options setup_scenario(const struct options *options); /* borrows from options */
/* checks_default: what --checks is without the option. False and an error: a name that is not known or a
 * path that is not there on this machine. */
bool setup_experiment(const struct options *options, const char *checks_default, int threads_default,
                      struct experiment_options *ret_experiment, struct error *error);
/* --json, --csv, --dump, --junit can be written and do not collide. */
bool setup_outputs(const struct options *options, struct error *error);

#endif
