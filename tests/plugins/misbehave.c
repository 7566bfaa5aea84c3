/* misbehave: all-reduce algorithms that end the process in every way there is, on member 1 once numbers move, for tests/test_plugins.sh. Asked
 * beforehand (by no member that could be told from another) they do what an all-reduce does. */
#include <hpsim.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int by_root(const struct hpsim_collective *c)
{
    int m, bad = 0;
    if (c->member != 0) return c->send(c->call, 0, 0, c->members) || c->receive(c->call, 0, 0, c->members);
    for (m = 1; m < c->members; m++) bad |= c->receive_add(c->call, m, 0, c->members);
    for (m = 1; m < c->members; m++) bad |= c->send(c->call, m, 0, c->members);
    return bad;
}

static volatile int zero;

static int run_crash(const struct hpsim_collective *c)
{
    int bad = by_root(c);
    if (c->member == 1) *(volatile int *)(size_t)zero = 1;
    return bad;
}

static int run_divide(const struct hpsim_collective *c)
{
    int bad = by_root(c);
    return c->member == 1 ? 7 / zero : bad;
}

static int run_abort(const struct hpsim_collective *c)
{
    int bad = by_root(c);
    if (c->member == 1) abort();
    return bad;
}

static int run_exit(const struct hpsim_collective *c)
{
    int bad = by_root(c);
    if (c->member == 1) exit(0);
    return bad;
}

static int run_exit_at_once(const struct hpsim_collective *c)
{
    int bad = by_root(c);
    if (c->member == 1) _exit(0);
    return bad;
}

static int run_loop(const struct hpsim_collective *c)
{
    int bad = by_root(c);
    while (c->member == 1 && !zero) continue;
    return bad;
}

static int run_sleep(const struct hpsim_collective *c)
{
    int bad = by_root(c);
    while (c->member == 1 && !zero) pause();
    return bad;
}

/* The compiler must not make a loop of it, nor leave the array out. */
static int deeper(volatile char *above, int depth)
{
    volatile char here[1000];
    memset((void *)(size_t)here, depth, sizeof here);
    above[0] = here[depth % 1000];
    return zero ? 0 : deeper(here, depth + 1) + here[1];
}

static int run_stack(const struct hpsim_collective *c)
{
    volatile char top[4];
    int bad = by_root(c);
    return c->member == 1 ? deeper(top, 0) : bad;
}

static int run_free(const struct hpsim_collective *c)
{
    int bad = by_root(c);
    void *volatile not_mine = (char *)(size_t)c + 8;
    if (c->member == 1) free(not_mine);
    return bad;
}

static int run_wrong_member(const struct hpsim_collective *c)
{
    int bad = by_root(c);
    if (c->member == 1) c->send(c->call, c->members + 3, 0, 1);
    return bad;
}

/* Everybody receives first. */
static int run_deadlock(const struct hpsim_collective *c)
{
    int to = (c->member + 1) % c->members, from = (c->member + c->members - 1) % c->members;
    return c->receive_add(c->call, from, 0, 1) || c->send(c->call, to, 0, 1);
}

static const struct hpsim_algorithm algorithms[] = {
    {"all_reduce", "crash", run_crash}, {"all_reduce", "divide", run_divide}, {"all_reduce", "abort", run_abort},
    {"all_reduce", "exit", run_exit}, {"all_reduce", "exit_at_once", run_exit_at_once}, {"all_reduce", "loop", run_loop},
    {"all_reduce", "sleep", run_sleep}, {"all_reduce", "stack", run_stack}, {"all_reduce", "free", run_free},
    {"all_reduce", "wrong_member", run_wrong_member}, {"all_reduce", "deadlock", run_deadlock},
};

static const struct hpsim_description description = {
    HPSIM_ABI, sizeof(struct hpsim_description), "misbehave", NULL, algorithms, sizeof algorithms / sizeof algorithms[0], NULL, 0, NULL, 0,
};

const struct hpsim_description *hpsim_plugin(void)
{
    return &description;
}
