/* context_calls: the calls of context parallelism in the workloads `attention` and `denoise`, of each rank, against what the declared
 * method costs (context_due.h): calls, messages and bytes, each exactly.
 *
 *   calls    of one attention: a ring's hops of keys and of values R - 1 each in the forward and again in the backward, those of their
 *            gradients R (parallel.context.reversed: R - 1); two gathers, two reduce-scatters; three all-to-alls there and one back
 *   messages one a hop; P - 1 a gather and a reduce-scatter; U - 1 an all-to-all
 *   bytes    B sequences, n_m own rows of member m (0 or more, not all alike), J joint rows, H heads, G key/value heads of D numbers of
 *            a bytes (activations) or s bytes (storage); members P, of them U split heads (ulysses: P, usp: parallel.context.ulysses,
 *            else 1) and R = P / U (ring, usp) make a ring, whose block g has N_g = the sum of its U members' n rows; me this rank:
 *              cp.kv_hop           2 B (G/U) D a     sum of N_(g-s) over s = 0 .. R-2, forward and backward (reversed: backward N_(g+s))
 *              cp.dkv_hop          2 B (G/U) D s     sum of all N (reversed: all but N_g); R = 1: none
 *              cp.kv_gather        2 B G D a         algorithm ring: sum of all n but the right neighbour's; direct: (P-1) n_me; forward
 *                                                    and backward
 *              cp.kv_grad_scatter  2 B G D s         sum of all n but n_me
 *              cp.seq_to_head      B D (U-1) n_me    forward ((H + 2 G)/U) a; backward (H/U) s
 *              cp.head_to_seq      B D               forward (H/U) a (sum of the other members' n + (U-1) J); backward ((H + 2 G)/U) s
 *                                                    (sum of the other members' n)
 *            Joint rows are sent in nothing else; log-sum-exps that ride with outputs are beside a real system's payload. A run of the
 *            sampler is its layers times its iterations of forwards, on one rank none.
 *   formats  keys, values, queries, outputs move in the activations' format, gradients of keys and values in the storage's
 * What was sent is the communicator's traffic. Rows are those that each rank has (shard-cover says whether they are the right ones).
 * Limit: exact. Less is a loss, more a waste; both are findings. An algorithm that is none of hpsim's has no formula: calls alone. Site:
 * that of the calls; of hops that a decision left out, the decision's. */
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

/* ---- messages and bytes due ---- */

/* The ranks that share this rank's sequences. */
struct sharing { const struct evidence *e; int first, members, me, heads_over /* U */; };

static struct sharing sharing_of(const struct evidence *e, int rank)
{
    const struct layout *l = &e->config->layout;
    int members = layout_cp(l), me = rank % members;
    int heads_over = !strcmp(l->context.method, "ulysses") ? members : !strcmp(l->context.method, "usp") ? l->context.ulysses : 1;
    return (struct sharing){e, rank - me, members, me, heads_over};
}

static int64_t own_rows(const struct sharing *sharing, int member)
{
    const struct evidence *e = sharing->e;
    const struct rank_record *rank = &e->parallel->rank[sharing->first + member];
    if (e->config->workload == WORKLOAD_DENOISE) return rank->latents.items[0].rows / e->config->attention.batch;
    return rank->attention->rows - e->config->attention.joint;
}

static int64_t rows_of_run(const struct sharing *sharing, int first, int count)
{
    int64_t rows = 0;
    for (int m = first; m < first + count; m++) rows += own_rows(sharing, m);
    return rows;
}

/* Rows of the ring's blocks that are passed on one after the other: the own one and those behind it (way 1) or before it (-1). */
static int64_t rows_passed_on(const struct sharing *sharing, int way)
{
    int blocks = sharing->members / sharing->heads_over, mine = sharing->me / sharing->heads_over;
    int64_t rows = 0;
    for (int s = 0; s < blocks - 1; s++)
        rows += rows_of_run(sharing, ((mine - way * s) % blocks + blocks) % blocks * sharing->heads_over, sharing->heads_over);
    return rows;
}

/* Elements that a forward and a backward send in the activations' format and in the storage's. */
struct payload { int64_t messages, activations, gradients; };

static struct payload of_hops(const struct sharing *sharing, bool gradients, bool backward)
{
    const struct run_config *config = sharing->e->config;
    int ring = sharing->members / sharing->heads_over, block = sharing->me / sharing->heads_over * sharing->heads_over;
    bool reversed = config->layout.context.reversed;
    int64_t width = 2 * (int64_t)config->attention.batch * (config->model.kv_heads / sharing->heads_over) * config->model.head_dim;
    if (ring == 1) return (struct payload){0};
    if (!gradients) {
        int64_t rows = rows_passed_on(sharing, 1) + (backward ? rows_passed_on(sharing, reversed ? -1 : 1) : 0);
        return (struct payload){2 * (ring - 1) * (1 + backward), width * rows, 0};
    }
    if (!backward) return (struct payload){0};
    int64_t rows = rows_of_run(sharing, 0, sharing->members) - (reversed ? rows_of_run(sharing, block, sharing->heads_over) : 0);
    return (struct payload){2 * (ring - reversed), 0, width * rows};
}

static struct payload of_gathers(const struct sharing *sharing, bool gradients, bool backward, bool direct)
{
    const struct run_config *config = sharing->e->config;
    int P = sharing->members;
    int64_t width = 2 * (int64_t)config->attention.batch * config->model.kv_heads * config->model.head_dim, all = rows_of_run(sharing, 0, P);
    int64_t own = own_rows(sharing, sharing->me), gathered = direct ? (P - 1) * own : all - own_rows(sharing, (sharing->me + 1) % P);
    if (gradients) return (struct payload){2 * (P - 1) * backward, 0, width * (all - own) * backward};
    return (struct payload){2 * (P - 1) * (1 + backward), width * gathered * (1 + backward), 0};
}

static struct payload of_heads(const struct sharing *sharing, bool there, bool backward)
{
    const struct run_config *config = sharing->e->config;
    int U = sharing->heads_over, first = sharing->me / U * U;
    int64_t each = (int64_t)config->attention.batch * config->model.head_dim, own = own_rows(sharing, sharing->me), others = rows_of_run(sharing, first, U) - own;
    int64_t queries = each * (config->model.heads / U), all = queries + 2 * each * (config->model.kv_heads / U);
    if (there) return (struct payload){(U - 1) * (3 + backward), all * own * (U - 1), queries * own * (U - 1) * backward};
    return (struct payload){(U - 1) * (1 + 3 * backward), queries * (others + (int64_t)(U - 1) * config->attention.joint), all * others * backward};
}

/* By which algorithm the rank's calls went; NULL: there were none. */
static const char *algorithm_of(const struct rank_record *rank, const struct site *site)
{
    for (int i = 0; rank->communicator && i < communicator_traffic_count(rank->communicator); i++) {
        const struct traffic *t = communicator_traffic(rank->communicator, i);
        if (!strcmp(t->purpose, site->name)) return t->algorithm;
    }
    return NULL;
}

static bool is_one_of(const char *algorithm, const char *a, const char *b)
{
    return algorithm && (!strcmp(algorithm, a) || !strcmp(algorithm, b));
}

/* false: not known of such an algorithm. */
static bool payload_due(const struct evidence *e, int rank, const struct site *site, struct payload *ret)
{
    struct sharing sharing = sharing_of(e, rank);
    const char *algorithm = algorithm_of(&e->parallel->rank[rank], site);
    bool backward = e->config->workload == WORKLOAD_ATTENTION && e->config->attention.backward;
    bool hops = site == context_site("cp.kv_hop") || site == context_site("cp.dkv_hop");
    bool gathers = site == context_site("cp.kv_gather"), scatters = site == context_site("cp.kv_grad_scatter"), there = site == context_site("cp.seq_to_head");
    if (hops) *ret = of_hops(&sharing, site == context_site("cp.dkv_hop"), backward);
    else if (gathers && is_one_of(algorithm, "ring", "direct")) *ret = of_gathers(&sharing, false, backward, !strcmp(algorithm, "direct"));
    else if (scatters && is_one_of(algorithm, "ring", "fold")) *ret = of_gathers(&sharing, true, backward, false);
    else if (!gathers && !scatters && is_one_of(algorithm, "linear", "pairwise")) *ret = of_heads(&sharing, there, backward);
    else return false;
    return true;
}

/* ---- */

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
            struct payload payload;
            if (due == 0 || !payload_due(e, r, site, &payload)) continue;
            int64_t size = times * (payload.activations * format_traits[precision_activation(&e->config->precision)].bytes +
                                    payload.gradients * format_traits[run_storage(e->config)].bytes);
            if (messages != times * payload.messages) find(e, output, r, site, "messages", times * payload.messages, messages);
            else if (bytes != size) find(e, output, r, site, "bytes", size, bytes);
        }
    }
}
