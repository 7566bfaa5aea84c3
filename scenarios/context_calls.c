/* context_calls: the calls of context parallelism in the workload `attention`, of each rank, against what the declared method costs
 * (context_due.h), and their bytes.
 *
 *   calls    a ring's hops of keys and of values P - 1 each in the forward and again in the backward, those of their gradients P
 *            (parallel.context.reversed: P - 1); two gathers, two reduce-scatters; three all-to-alls there and one back
 *   bytes    of a ring's hops: every block but the own one (P - 1 hops) or every block (P hops), of all sequences, in the
 *            activations' format; gradients in the storage
 *   formats  keys, values, queries, outputs move in the activations' format, gradients of keys and values in the storage's
 * Limit: exact. Less is a loss, more a waste; both are findings. Site: that of the calls; of hops that a decision left out, the
 * decision's. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/precision.h"
#include "model/sites.h"
#include "scenarios/context_checks.h"
#include "scenarios/context_due.h"
#include "scenarios/facts.h"

static void made_by(const struct rank_record *rank, const struct site *site, int64_t *ret_calls, int64_t *ret_messages, int64_t *ret_bytes)
{
    *ret_calls = *ret_messages = *ret_bytes = 0;
    for (int i = 0; rank->communicator && i < communicator_traffic_count(rank->communicator); i++) {
        const struct traffic *t = communicator_traffic(rank->communicator, i);
        if (strcmp(t->purpose, site->name)) continue;
        *ret_calls += (int64_t)t->count;
        *ret_messages += (int64_t)t->messages;
        *ret_bytes += (int64_t)t->bytes;
    }
}

/* What a ring's hops carry from this rank: the blocks that it passes on. */
static int64_t bytes_due(const struct evidence *e, int rank, const struct site *site)
{
    const struct layout *l = &e->config->layout;
    const struct record *record = e->parallel;
    int members = layout_cp(l), me = rank % members, first = rank - me, hops = members - 1;
    bool gradients = site == context_site("cp.dkv_hop"), reversed = l->context.reversed;
    enum format format = gradients ? run_storage(e->config) : precision_activation(&e->config->precision);
    int64_t rows = 0, width = (int64_t)e->config->model.kv_heads * e->config->model.head_dim * format_traits[format].bytes;
    if (strcmp(l->context.method, "ring") || (site != context_site("cp.kv_hop") && !gradients)) return -1;
    if (gradients) {
        for (int c = 0; c < members; c++) rows += c == me && reversed ? 0 : record->rank[first + c].attention->rows - e->config->attention.joint;
        return e->config->attention.backward && members > 1 ? 2 * rows * e->config->attention.batch * width : 0;
    }
    for (int s = 0; s < hops; s++) rows += record->rank[first + (me - s + members) % members].attention->rows - e->config->attention.joint;
    int64_t forward = rows;
    rows = 0;
    for (int s = 0; s < hops && e->config->attention.backward; s++)
        rows += record->rank[first + ((reversed ? me + s : me - s) % members + members) % members].attention->rows - e->config->attention.joint;
    return 2 * (forward + rows) * e->config->attention.batch * width;
}

static void find(const struct evidence *e, struct check_output *output, int rank, const struct site *site, const char *what, int64_t due, int64_t got)
{
    const struct site *decision = context_calls_decision(e->parallel, &e->parallel->rank[rank], site);
    struct finding finding = finding_new(decision ? decision : site, context_place(e, rank));
    finding.expected = (double)due;
    finding.got = (double)got;
    finding_pattern(&finding, "calls-differ");
    finding_say(&finding, "rank %d makes %lld %s of %s where %s with cp %d costs %lld: %s", rank, (long long)got, what, site->name, e->config->layout.context.method,
                layout_cp(&e->config->layout), (long long)due, got < due ? "something is never passed on" : "more than is needed");
    check_value(output, (double)llabs(got - due), 0);
    check_find(output, &finding);
}

/* What moves there may be in: activations, storage, or (queries and gradients by the same site) either. */
static bool format_is_due(const struct evidence *e, const struct site *site, enum format format)
{
    enum format activation = precision_activation(&e->config->precision), storage = run_storage(e->config);
    if (site == context_site("cp.kv_hop") || site == context_site("cp.kv_gather")) return format == activation;
    if (site == context_site("cp.dkv_hop") || site == context_site("cp.kv_grad_scatter")) return format == storage;
    return format == activation || format == storage;
}

const struct site *context_wrong_format(const struct evidence *e)
{
    for (int r = 0; r < e->parallel->ranks; r++) {
        const struct communicator *c = e->parallel->rank[r].communicator;
        for (int i = 0; c && i < communicator_traffic_count(c); i++) {
            const struct site *site = context_site(communicator_traffic(c, i)->purpose);
            if (site && !strncmp(site->name, "cp.", 3) && !format_is_due(e, site, communicator_traffic(c, i)->format)) return site;
        }
    }
    return NULL;
}

static void look_at_formats(const struct evidence *e, struct check_output *output, int rank, const struct site *site)
{
    const struct communicator *c = e->parallel->rank[rank].communicator;
    for (int i = 0; c && i < communicator_traffic_count(c); i++) {
        const struct traffic *t = communicator_traffic(c, i);
        if (strcmp(t->purpose, site->name) || format_is_due(e, site, t->format)) continue;
        struct finding finding = finding_new(site, context_place(e, rank));
        finding_pattern(&finding, "wrong-format");
        finding_say(&finding, "rank %d moves %s in %s", rank, site->name, format_traits[t->format].name);
        check_value(output, 1, 0);
        check_find(output, &finding);
    }
}

void context_calls(const struct evidence *e, struct check_output *output)
{
    const struct record *record = e->parallel;
    if (!facts_finished(record)) {
        check_skip(output, "the run did not finish");
        return;
    }
    check_value(output, 0, 0);
    for (int r = 0; r < record->ranks; r++) {
        for (int s = 0; s < model_site_count(); s++) {
            const struct site *site = model_site(s);
            int64_t forward, backward, calls, messages, bytes;
            if (site->kind != SITE_COMMUNICATION || !context_calls_of(&e->config->layout, site, &forward, &backward)) continue;
            bool denoise = e->config->workload == WORKLOAD_DENOISE;
            int64_t times = denoise ? (int64_t)e->config->model.layers * e->config->iterations : 1;
            int64_t due = denoise ? (layout_cp(&e->config->layout) > 1 ? times * forward : 0) : forward + (e->config->attention.backward ? backward : 0);
            look_at_formats(e, output, r, site);
            made_by(&record->rank[r], site, &calls, &messages, &bytes);
            if (calls != due) {
                find(e, output, r, site, "calls", due, calls);
                continue;
            }
            int64_t size = denoise ? -1 : bytes_due(e, r, site);
            if (size >= 0 && bytes != size) find(e, output, r, site, "bytes", size, bytes);
        }
    }
}
