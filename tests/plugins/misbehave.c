/* misbehave: all-reduce algorithms that end the process in every way there is, on member 1 once numbers move, for tests/test_plugins.sh. Asked
 * beforehand (by no member that could be told from another) they do what an all-reduce does. */
#define _GNU_SOURCE
#include <hpsim.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
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

/* Copies whose every rank makes copies, where nobody stops it: only one does, so that a mistake in hpsim is no end of the machine. */
static int run_fork(const struct hpsim_collective *c)
{
    int bad = by_root(c);
    if (c->member == 1 && !getenv("HPSIM_TEST_FORKED")) {
        setenv("HPSIM_TEST_FORKED", "1", 1);
        if (fork() < 0) abort();
    }
    return bad;
}

/* Without the handlers of fork(). */
static int run_copy(const struct hpsim_collective *c)
{
    int bad = by_root(c);
    if (c->member == 1 && !getenv("HPSIM_TEST_FORKED")) {
        setenv("HPSIM_TEST_FORKED", "1", 1);
        if (syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) != 0) pause(); /* the copy comes back first */
    }
    return bad;
}

static int run_leave_behind(const struct hpsim_collective *c)
{
    int bad = by_root(c);
    if (c->member == 1 && access("left.pid", F_OK) != 0 && system("sleep 333 </dev/null >/dev/null 2>&1 & echo $! >left.pid") != 0) abort();
    return bad;
}

static int run_print(const struct hpsim_collective *c)
{
    static const char unbuffered[] = "unbuffered words\n";
    int bad = by_root(c);
    if (c->member == 1 && (printf("buffered words\n") < 0 || write(1, unbuffered, sizeof unbuffered - 1) < 0)) abort();
    return bad;
}

static const struct hpsim_algorithm algorithms[] = {
    {"all_reduce", "crash", run_crash}, {"all_reduce", "divide", run_divide}, {"all_reduce", "abort", run_abort},
    {"all_reduce", "exit", run_exit}, {"all_reduce", "exit_at_once", run_exit_at_once}, {"all_reduce", "loop", run_loop},
    {"all_reduce", "sleep", run_sleep}, {"all_reduce", "stack", run_stack}, {"all_reduce", "free", run_free},
    {"all_reduce", "wrong_member", run_wrong_member}, {"all_reduce", "deadlock", run_deadlock},
    {"all_reduce", "fork", run_fork}, {"all_reduce", "copy", run_copy}, {"all_reduce", "leave_behind", run_leave_behind}, {"all_reduce", "print", run_print},
};

static const struct hpsim_description description = {
    HPSIM_ABI, sizeof(struct hpsim_description), "misbehave", NULL, algorithms, sizeof algorithms / sizeof algorithms[0], NULL, 0, NULL, 0,
};

const struct hpsim_description *hpsim_plugin(void)
{
    return &description;
}
