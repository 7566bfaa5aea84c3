/* test_meetings: a collective computed at once is the collective message by message, in everything that can be
 * seen of it; and collectives in flight.
 *
 * One program is run in both modes, with 1 and 3 threads and several interleavings; what it computes, and what is
 * recorded of it, goes into digests that must agree. */
#include "tests/support/ranks.h"
#include "tests/support/run_suite.h"

#include "collectives/communicator_state.h"
#include "collectives/pattern.h"
#include "sim/hash.h"
#include "sim/random.h"
#include "sim/trace.h"

static double cost_s(void *context, int source, int destination, size_t bytes)
{
    (void)context;
    return 1e-6 * (1 + (source * 5 + destination * 3) % 7) + 1e-9 * (double)bytes;
}

/* ---- all algorithms, sizes, formats, reductions ---- */

struct formats { enum format storage, wire; };
static const struct formats formats[] = {
    {FORMAT_FP64, FORMAT_FP64}, {FORMAT_FP32, FORMAT_FP32}, {FORMAT_FP32, FORMAT_BF16}, {FORMAT_FP64, FORMAT_FP16},
    {FORMAT_FP32, FORMAT_FP8_E4M3}, {FORMAT_FP64, FORMAT_FP8_E5M2},
};
enum { FORMATS = sizeof formats / sizeof *formats, STEPS = 3 };

static struct hash digests[RANKS_MAX];

static void hash_buffer(struct hash *hash, struct buffer b)
{
    hash_reals(hash, b.data, b.count, b.storage);
    hash_u64(hash, b.ledger->tag_sum);
    for (int i = 0; i < b.ledger->count; i++) {
        const struct ledger_term *term = &b.ledger->terms[i];
        hash_u64(hash, (uint64_t)(term->origin.step * 1000 + term->origin.rank));
        hash_u64(hash, (uint64_t)term->times);
        hash_f64(hash, term->scale);
    }
}

/* Data that rounds, infinities and NaNs now and then; ledgers of different weights. */
static struct buffer filled(size_t count, struct formats f, int rank, int salt)
{
    struct buffer b = buffer_new(count, f.storage, f.wire);
    struct random_stream stream = random_stream((uint64_t)salt, "meetings");
    for (size_t i = 0; i < count; i++) {
        double value = (double)(float)random_normal_at(&stream, (uint64_t)rank * 1000 + i);
        put(b, i, i % 29 == 17 && rank == 1 ? (double)INFINITY : i % 31 == 19 ? (double)NAN : value);
    }
    ledger_add_term(b.ledger, (struct origin){.step = 1, .rank = rank}, 1, salt % 2 ? 1.0 : 1.0 / (rank + 3));
    /* Several ranks' in one term: their mean weight depends on the order, in its last bits. */
    ledger_add_term(b.ledger, (struct origin){.step = 2, .rank = rank / 4}, 1 + rank % 2, salt % 2 ? 1.0 : 0.3 + 0.17 * rank);
    return b;
}

static size_t part_count(int member, size_t n)
{
    return member % 3 == 1 ? 0 : n + (size_t)(member * 2);
}

static void run_algorithm(struct communicator *c, struct group *g, int a, size_t n, struct formats f, int variant)
{
    struct comm how = at_step(&site_reduce, 1);
    const struct collective_algorithm *info = collective_algorithm(a);
    const char *op = info->op;
    enum reduce_op reduction = (enum reduce_op)(variant % REDUCE_COUNT);
    int rank = g->me, root = (variant + 1) % g->size;
    size_t counts[RANKS_MAX], backward[RANKS_MAX], total = 0, p = (size_t)g->size;
    how.algorithm = info->name;
    how.uncounted = (size_t)variant % 3;
    for (int m = 0; m < g->size; m++)
        total += counts[m] = part_count(m, n);
    bool even = variant % 2;
    size_t mine = even ? n : counts[rank], all = even ? n * p : total;
    const size_t *given = even ? NULL : counts;
    struct buffer small = filled(mine, f, rank, variant), large = filled(all, f, rank, variant + 1);
    struct buffer same = filled(n, f, rank, variant + 2), out = filled(n, f, rank, variant + 3);
    if (strcmp(op, "all_reduce") == 0)
        even ? all_reduce(c, g, &how, same, reduction) : all_reduce_to(c, g, &how, out, same, reduction);
    else if (strcmp(op, "reduce") == 0)
        reduce_to(c, g, &how, out, even ? same : out, reduction, root);
    else if (strcmp(op, "reduce_scatter") == 0)
        reduce_scatter(c, g, &how, small, large, given, reduction);
    else if (strcmp(op, "all_gather") == 0)
        all_gather(c, g, &how, large, small, given);
    else if (strcmp(op, "gather") == 0)
        gather(c, g, &how, large, small, given, root);
    else if (strcmp(op, "scatter") == 0)
        scatter(c, g, &how, small, large, given, root);
    else if (strcmp(op, "broadcast") == 0)
        broadcast(c, g, &how, same, root);
    else if (strcmp(op, "barrier") == 0)
        barrier(c, g, &how);
    else if (strcmp(op, "all_to_all") == 0) {
        struct buffer to = filled(n * p, f, rank, variant + 4), from = filled(n * p, f, rank, variant + 5);
        if (even) {
            all_to_all(c, g, &how, to, from);
        } else { /* counts by the sum of the two members */
            to.count = from.count = 0;
            for (int m = 0; m < g->size; m++)
                to.count += backward[m] = (size_t)(m + rank) % (n + 1);
            from.count = to.count;
            all_to_all_uneven(c, g, &how, to, from, backward, backward);
        }
        hash_buffer(&digests[rank], to);
        hash_buffer(&digests[rank], from);
        buffer_free(to);
        buffer_free(from);
    } else {
        REQUIRE(!"an operation that this test knows");
    }
    const struct buffer buffers[] = {small, large, same, out};
    for (int i = 0; i < 4; i++) {
        hash_buffer(&digests[rank], buffers[i]);
        buffer_free(buffers[i]);
    }
    hash_f64(&digests[rank], rank_time_s(communicator_rank(c)));
}

static void all_body(struct communicator *c, int rank, void *context)
{
    (void)context;
    struct group *g = communicator_group(c, "dp");
    size_t p = (size_t)g->size;
    const size_t sizes[] = {0, 1, p - 1, p, p + 1, 53};
    int variant = 0;
    for (int a = 0; a < collective_algorithm_count(); a++)
        for (int f = 0; f < FORMATS; f++)
            for (int s = 0; s < 6; s++)
                for (int v = 0; v < 6; v++) {
                    rank_advance(communicator_rank(c), 1e-6 * ((rank * 7 + variant) % 5));
                    run_algorithm(c, g, a, sizes[s], formats[f], variant++ / 6 * 6 + v);
                }
}

/* What is recorded of a run: log, traffic, messages, times, trace. */
static void hash_records(const struct ranks *ranks, int rank, struct hash *hash)
{
    const struct communicator *c = ranks->communicators[rank];
    struct rank *r = machine_rank(ranks->machine, rank);
    for (int i = 0; i < communicator_calls(c); i++) {
        const struct call_record *call = communicator_call(c, i);
        hash_text(hash, call->op);
        hash_text(hash, call->algorithm);
        hash_u64(hash, call->sequence);
        hash_u64(hash, call->count);
        hash_u64(hash, (uint64_t)(call->format * 100 + (call->reduce + 1) * 10 + call->root + 1));
    }
    for (int i = 0; i < communicator_traffic_count(c); i++) {
        const struct traffic *t = communicator_traffic(c, i);
        hash_text(hash, t->algorithm);
        hash_u64(hash, t->count);
        hash_u64(hash, t->messages);
        hash_u64(hash, t->bytes);
    }
    struct transport_count sent = transport_sent(r);
    hash_u64(hash, sent.messages);
    hash_u64(hash, sent.bytes);
    hash_f64(hash, rank_time_s(r));
    hash_u64(hash, (uint64_t)transport_unwaited(r));
    for (int i = 0; i < trace_count(r); i++) {
        const struct trace_event *event = trace_event(r, i);
        hash_f64(hash, event->time_s);
        hash_u64(hash, (uint64_t)event->kind);
        hash_text(hash, event->name);
        hash_u64(hash, event->bytes);
    }
}

static void digest_run(struct ranks *ranks, bool messages, int threads, uint64_t ret[RANKS_MAX][2])
{
    int size = mesh_ranks(&ranks->mesh);
    for (int r = 0; r < size; r++)
        hash_init(&digests[r]);
    ranks->messages_only = messages;
    ranks->threads = threads;
    ranks->interleave = (uint64_t)(threads - 1) * 7;
    ranks->trace = true;
    ranks->message_cost_s = cost_s;
    ranks_run(ranks);
    ck_assert_int_eq(ranks->outcome, MACHINE_FINISHED);
    for (int r = 0; r < size; r++) {
        hash_records(ranks, r, &digests[r]);
        hash_finish(&digests[r], ret[r]);
    }
}

static uint64_t same_in_both_modes(struct ranks ranks)
{
    static uint64_t first[RANKS_MAX][2], other[RANKS_MAX][2];
    uint64_t rounds_messages, rounds = 0;
    digest_run(&ranks, true, 1, first);
    rounds_messages = machine_rounds(ranks.machine);
    ranks_done(&ranks);
    for (int threads = 1; threads <= 3; threads += 2) {
        digest_run(&ranks, false, threads, other);
        for (int r = 0; r < mesh_ranks(&ranks.mesh); r++)
            if (memcmp(first[r], other[r], sizeof *first) != 0)
                ck_abort_msg("rank %d of %d, %d threads", r, mesh_ranks(&ranks.mesh), threads);
        ck_assert(threads == 1 || rounds == machine_rounds(ranks.machine));
        rounds = machine_rounds(ranks.machine);
        ranks_done(&ranks);
    }
    return rounds_messages - rounds; /* so the mode makes a difference at all */
}

/* Every algorithm, group sizes 1 to 9, awkward counts, all formats and reductions, NaNs and infinities, in place
 * and not, ledgers of different weights: bits, ledgers, log, traffic, virtual time and trace are the same. */
START_TEST(all_algorithms)
{
    uint64_t saved = same_in_both_modes((struct ranks){.mesh = mesh_line(_i), .body = all_body});
    ck_assert((_i == 1) == (saved == 0));
}
END_TEST

/* ---- every algorithm's pattern ---- */

static void half_of_it(struct operation *o) /* the first part of a ring only: a sum that lacks contributions */
{
    struct part arrived;
    operation_send(o, operation_member(o, 1), &o->parts[0]);
    struct message *message = operation_receive(o, operation_member(o, -1), &o->parts[0], &arrived);
    part_reduce(o, &o->parts[0], &arrived);
    operation_release(o, message);
}
static void nobody_sends(struct operation *o)
{
    struct part arrived;
    operation_release(o, operation_receive(o, operation_member(o, -1), &o->parts[0], &arrived));
}

static bool sound(const struct algorithm *algorithm, int size, int root, int *ret_slots)
{
    struct pattern *list = NULL;
    struct operation like = {.op = algorithm->op, .algorithm = algorithm, .size = size, .root = root};
    const struct pattern *p = pattern_of(&list, &like);
    bool result = p->sound && pattern_of(&list, &like) == p;
    *ret_slots = p->slots;
    patterns_free(list);
    return result;
}

/* Is sound, so that members do meet, for any size and root, and needs few blocks beside inputs and outputs. */
START_TEST(patterns)
{
    const struct algorithm half = {OP_ALL_REDUCE, {"all_reduce", "half"}, half_of_it, NULL};
    const struct algorithm nobody = {OP_BARRIER, {"barrier", "nobody"}, nobody_sends, NULL};
    int slots;
    for (int size = 2; size <= 33; size++) {
        for (int i = 0; i < collective_algorithm_count(); i++)
            for (int root = 0; root < size; root += 1 + size / 5) {
                const struct collective_algorithm *info = collective_algorithm(i);
                const struct algorithm *algorithm = NULL;
                for (int op = 0; op < OP_RING_SHIFT; op++)
                    if (strcmp(collective_op_names[op], info->op) == 0)
                        algorithm = algorithm_find((enum collective_op)op, info->name);
                ck_assert_msg(sound(algorithm, size, root, &slots), "%s %s, %d ranks, root %d", info->op, info->name, size, root);
                ck_assert_int_le(slots, 6);
            }
        ck_assert(!sound(&half, size, 0, &slots));
        ck_assert(!sound(&nobody, size, 0, &slots));
    }
}
END_TEST

/* ---- much data: shared among workers ---- */

static void large_body(struct communicator *c, int rank, void *context)
{
    (void)context;
    struct group *g = communicator_group(c, "dp");
    struct comm how = at_step(&site_reduce, 0);
    for (int a = 0; a < collective_algorithm_count(); a++) {
        if (strcmp(collective_algorithm(a)->op, "all_reduce") != 0)
            continue;
        how.algorithm = collective_algorithm(a)->name;
        struct buffer b = filled(20011, formats[1], rank, a);
        all_reduce(c, g, &how, b, REDUCE_AVG);
        hash_buffer(&digests[rank], b);
        buffer_free(b);
    }
}

START_TEST(shared_among_workers)
{
    same_in_both_modes((struct ranks){.mesh = mesh_line(7), .body = large_body});
}
END_TEST

/* ---- in flight ---- */

enum { N = 11 };
static double code(int rank, int what, size_t i)
{
    return rank * 100 + what * 1000 + (double)i;
}

static struct buffer coded(int rank, int what, size_t count)
{
    struct buffer b = buffer_new(count, FORMAT_FP64, FORMAT_FP64);
    for (size_t i = 0; i < count; i++)
        put(b, i, code(rank, what, i));
    came_from(b, what, rank);
    return b;
}

static void expect_nothing_yet(struct buffer b)
{
    for (size_t i = 0; i < b.count; i++)
        REQUIRE(isnan(at(b, i)));
}

/* Four at once, waited for in another order; another call goes between; outputs are NaN until they are waited
 * for, and a rank computes in the meantime. */
static void flight_body(struct communicator *c, int rank, void *context)
{
    (void)context;
    struct group *g = communicator_group(c, "dp");
    size_t p = (size_t)g->size;
    struct comm how = at_step(&site_reduce, 0);
    struct buffer in[4], out[4];
    for (int k = 0; k < 4; k++) {
        in[k] = coded(rank, k, k == 1 ? N : N * p);
        out[k] = coded(rank, 9, k == 2 ? N : N * p);
    }
    struct collective *handle[4] = {
        all_reduce_start(c, g, &how, out[0], in[0], REDUCE_SUM), all_gather_start(c, g, &how, out[1], in[1], NULL),
        reduce_scatter_start(c, g, &how, out[2], in[2], NULL, REDUCE_SUM),
        all_to_all_start(c, g, &how, out[3], in[3], NULL, NULL),
    };
    REQUIRE(transport_unwaited(communicator_rank(c)) == 4);
    for (int k = 0; k < 4; k++)
        expect_nothing_yet(out[k]);
    rank_advance(communicator_rank(c), 3e-6 * rank);
    put(in[1], 4, -5); /* too early: this is what the others get */
    barrier(c, g, &how);
    for (int k = 3; k >= 0; k--) {
        collective_wait(c, handle[k]);
        hash_buffer(&digests[rank], out[k]);
        hash_f64(&digests[rank], rank_time_s(communicator_rank(c)));
    }
    REQUIRE(transport_unwaited(communicator_rank(c)) == 0);
    for (size_t i = 0; i < N * p; i++) {
        int from = (int)(i / N);
        double sum = 0;
        for (int m = 0; m < g->size; m++)
            sum += code(m, 0, i);
        REQUIRE(at(out[0], i) == sum);
        REQUIRE(at(out[1], i) == (i % N == 4 ? -5 : code(from, 1, i % N)));
        REQUIRE(at(out[3], i) == code(from, 3, (size_t)rank * N + i % N));
    }
    for (int k = 0; k < 4; k++) {
        buffer_free(in[k]);
        buffer_free(out[k]);
    }
}

START_TEST(in_flight)
{
    same_in_both_modes((struct ranks){.mesh = mesh_line(_i), .body = flight_body});
}
END_TEST

/* A rank reads before it waits, and one never waits: it has NaN, and the handle is counted. In place nothing is
 * filled with NaN: the input is there until the sum is. */
static void careless_body(struct communicator *c, int rank, void *context)
{
    (void)context;
    struct group *g = communicator_group(c, "dp");
    struct comm how = at_step(&site_reduce, 0);
    struct buffer in = coded(rank, 0, N), out = coded(rank, 1, N * 3), sum = coded(rank, 2, N);
    struct collective *gathered = all_gather_start(c, g, &how, out, in, NULL);
    struct collective *reduced = all_reduce_start(c, g, &how, sum, sum, REDUCE_SUM);
    REQUIRE(at(sum, 3) == code(rank, 2, 3));
    expect_nothing_yet(out);
    collective_wait(c, reduced);
    REQUIRE(at(sum, 3) == code(0, 2, 3) + code(1, 2, 3) + code(2, 2, 3));
    rank_yield(communicator_rank(c));
    expect_nothing_yet(out); /* nobody has waited for it */
    if (rank == 0)
        REQUIRE(transport_unwaited(communicator_rank(c)) == 1);
    else
        collective_wait(c, gathered);
}

START_TEST(not_waited_for)
{
    struct ranks ranks = {.mesh = mesh_line(3), .body = careless_body};
    ranks_run(&ranks);
    ck_assert_int_eq(ranks.outcome, MACHINE_FINISHED);
    for (int r = 0; r < 3; r++)
        ck_assert_int_eq(transport_unwaited(machine_rank(ranks.machine, r)), r == 0);
    ranks_done(&ranks);
}
END_TEST

/* Without messages a member that has started lets the others through, wherever it is then. */
static void let_through_body(struct communicator *c, int rank, void *context)
{
    (void)context;
    struct group *g = communicator_group(c, "dp");
    struct comm how = at_step(&site_move, 0);
    struct buffer in = coded(rank, 0, N), out = coded(rank, 1, N * 2), note = coded(rank, 2, 1);
    struct collective *handle = all_gather_start(c, g, &how, out, in, NULL);
    if (rank == 0) {
        collective_wait(c, handle);
        send_and_wait(c, g, &how, note, 1, 3, SEND_SYNC);
    } else {
        receive(c, g, &how, note, 0, 3);
        collective_wait(c, handle);
    }
    REQUIRE(at(out, N + 2) == code(1, 0, 2) && at(note, 0) == code(0, 2, 0));
    buffer_free(in);
    buffer_free(out);
    buffer_free(note);
}

START_TEST(lets_others_through)
{
    struct ranks ranks = {.mesh = mesh_line(2), .body = let_through_body};
    ranks_run(&ranks);
    ck_assert_int_eq(ranks.outcome, MACHINE_FINISHED);
    ranks_done(&ranks);
}
END_TEST

/* ---- programs that go wrong without a plan ---- */

/* By `fault`: 0 rank 2 leaves out a call in the middle; 1 the last one; 2 it makes another one; 3 of another
 * count; 4 of another format; 5 with another root; 6 rank 2 calls all_reduce by another algorithm; 7 the root of a
 * broadcast goes on to send what the others need before theirs; 8 sends and receives of an all_to_all differ. */
enum { WRONGS = 9 };
static void wrong_body(struct communicator *c, int rank, void *context)
{
    int fault = *(const int *)context;
    struct group *g = communicator_group(c, "dp");
    struct comm how = at_step(&site_move, 0), other = how;
    bool odd = rank == 2;
    other.algorithm = fault == 6 && odd ? "fold" : "ring";
    for (int k = 0; k < STEPS; k++) {
        struct buffer b = coded(rank, k, N), all = coded(rank, 5, N * 4);
        how.where.step = other.where.step = k;
        bool here = k == 1;
        if (fault == 3 && odd && here)
            b.count--;
        if (fault == 4 && odd && here)
            b.wire = FORMAT_FP32;
        if (fault == 2 && odd && here)
            all_gather(c, g, &how, all, b, NULL);
        else if (!(fault == 0 && odd && here) && !(fault == 1 && odd && k == STEPS - 1))
            all_reduce(c, g, &other, b, REDUCE_SUM);
        hash_buffer(&digests[rank], b);
        b.count = N;
        if (fault == 7 && rank != 0)
            receive(c, g, &how, (struct buffer){all.data, N, FORMAT_FP64, FORMAT_FP64, all.ledger}, 0, 4);
        broadcast(c, g, &how, b, fault == 5 && odd && here ? 1 : 0);
        for (int r = 1; fault == 7 && rank == 0 && r < g->size; r++)
            send_and_wait(c, g, &how, b, r, 4, SEND_ASYNC);
        if (fault == 8) {
            size_t counts[] = {2, 3, 1, 5}, receives[4];
            for (int m = 0; m < 4; m++)
                receives[m] = counts[rank] - (odd && m == 1);
            struct buffer in = coded(rank, 6, 11), out = coded(rank, 7, receives[0] + receives[1] + receives[2] + receives[3]);
            all_to_all_uneven(c, g, &how, out, in, counts, receives);
            hash_buffer(&digests[rank], out);
        }
        hash_buffer(&digests[rank], b);
        hash_f64(&digests[rank], rank_time_s(communicator_rank(c)));
    }
}

static void describe_end(const struct ranks *ranks, char *text, size_t size)
{
    struct mismatch mismatches[8];
    char unreceived[256];
    int used = snprintf(text, size, "%d", (int)ranks->outcome);
    int count = match_calls(ranks->communicators, 4, ranks->outcome == MACHINE_FINISHED, mismatches, 8);
    for (int i = 0; i < count; i++)
        used += snprintf(text + used, size - (size_t)used, "; %s call %d: %s", mismatches[i].group,
                         (int)mismatches[i].sequence, mismatches[i].text);
    const struct deadlock *deadlock = machine_deadlock(ranks->machine);
    for (int i = 0; deadlock && i < deadlock->blocked_count; i++) {
        const struct blocked *b = &deadlock->blocked[i];
        used += snprintf(text + used, size - (size_t)used, "; rank %d waits for %d in %s %s %d %u", b->rank, b->peer, b->op,
                         b->purpose, (int)b->sequence, b->tag);
    }
    for (int i = 0; deadlock && i < deadlock->cycle_count; i++)
        used += snprintf(text + used, size - (size_t)used, " > %d", deadlock->cycle[i]);
    machine_unreceived(ranks->machine, unreceived, sizeof unreceived);
    snprintf(text + used, size - (size_t)used, "; %s", unreceived);
}

/* Members that don't agree, or one that is missing: the same numbers, the same mismatch, the same deadlock with
 * the same ranks waiting for the same peers, whichever way the healthy calls around it went. */
START_TEST(wrong_programs)
{
    static char text[2][4096];
    uint64_t seen[2][4][2];
    for (int messages = 0; messages < 2; messages++) {
        struct ranks ranks = {.mesh = mesh_line(4), .body = wrong_body, .context = &_i, .messages_only = messages,
                              .message_cost_s = cost_s, .threads = messages ? 1 : 2};
        for (int r = 0; r < 4; r++)
            hash_init(&digests[r]);
        ranks_run(&ranks);
        describe_end(&ranks, text[messages], sizeof *text);
        for (int r = 0; r < 4; r++) {
            if (ranks.outcome == MACHINE_FINISHED)
                hash_records(&ranks, r, &digests[r]);
            hash_finish(&digests[r], seen[messages][r]);
        }
        ranks_done(&ranks);
    }
    ck_assert_str_eq(text[0], text[1]);
    ck_assert_mem_eq(seen[0], seen[1], sizeof *seen);
    bool found = strstr(text[0], "call ") || strstr(text[0], "waits for");
    ck_assert_msg(found == (_i != 7), "fault %d: %s", _i, text[0]);
}
END_TEST

/* ---- one rank by messages on its own accord: the others notice and follow ---- */

static void alone_body(struct communicator *c, int rank, void *context)
{
    (void)context;
    struct comm how = at_step(&site_reduce, 0);
    struct buffer b = coded(rank, 0, N);
    if (rank == 1)
        communicator_force_messages(c);
    all_reduce(c, communicator_group(c, "dp"), &how, b, REDUCE_MAX);
    REQUIRE(at(b, 3) == code(4, 0, 3));
    buffer_free(b);
}

START_TEST(one_by_messages)
{
    struct ranks ranks = {.mesh = mesh_line(5), .body = alone_body};
    ranks_run(&ranks);
    ck_assert_int_eq(ranks.outcome, MACHINE_FINISHED);
    ranks_done(&ranks);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("meetings");
    TCase *tcase = tcase_create("meetings");
    tcase_set_timeout(tcase, 120);
    tcase_add_loop_test(tcase, all_algorithms, 1, 10);
    tcase_add_test(tcase, patterns);
    tcase_add_test(tcase, shared_among_workers);
    tcase_add_loop_test(tcase, in_flight, 1, 6);
    tcase_add_test(tcase, not_waited_for);
    tcase_add_test(tcase, lets_others_through);
    tcase_add_loop_test(tcase, wrong_programs, 0, WRONGS);
    tcase_add_test(tcase, one_by_messages);
    suite_add_tcase(suite, tcase);
    return run_suite(suite, CK_NOFORK);
}
