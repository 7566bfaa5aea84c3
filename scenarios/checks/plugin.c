/* plugin: what a plug-in calls of hpsim it calls by the rules of hpsim.h, and it fills what it is given to fill.
 *
 * Read off what was noted where it happened (struct misuse): a member, a tag or a count that is none, a transfer waited for
 * twice or never, data changed under a send, memory that is not its own, outputs left as they were. A finding's site
 * is the plug-in's, its rank the one that did it. Limit: exact. */
#include "model/plugin/plugin.h"
#include "scenarios/check.h"
#include "scenarios/facts.h"

static void find(struct check_output *output, const struct run_config *config, const struct rank_record *rank, const struct misuse *m)
{
    struct finding finding = finding_new(m->site, place_at(rank->rank, m->where.step, m->where.microbatch));
    finding.place.layer = m->where.layer;
    if (m->where.layer >= 0) finding.place.unit = m->where.layer + 1;
    finding_pattern(&finding, "misuse");
    finding_say(&finding, "plug-in '%s' on rank %d, %s%s%s: %s", plugin_name(config->plugin), rank->rank, m->operation, m->call[0] ? ", at " : "", m->call, m->what);
    check_find(output, &finding);
}

static void run(const struct evidence *e, struct check_output *output)
{
    const struct record *record = e->parallel;
    if (!record->config.plugin) {
        check_skip(output, "there is no plug-in");
        return;
    }
    int count = 0;
    for (int r = 0; r < record->ranks; r++) {
        const struct communicator *c = record->rank[r].communicator;
        int misuses = c ? communicator_misuses(c) : 0;
        count += misuses;
        for (int i = 0; i < misuses; i++) find(output, &record->config, &record->rank[r], communicator_misuse(c, i));
    }
    check_value(output, count, 0);
}

const struct check check_plugin = {
    .id = "plugin",
    .proves = "a plug-in keeps to the rules of hpsim.h and fills what it is given to fill",
    .tier = "default",
    .workloads = CHECK_IN(WORKLOAD_TRAIN) | CHECK_IN(WORKLOAD_ATTENTION) | CHECK_IN(WORKLOAD_DENOISE),
    .measures = "calls against the rules",
    .run = run,
};
