/* guard: see guard.h. The watched facts are few and in shared memory; the child is an ordinary fork, made before anything
 * has started a thread. */
#define _GNU_SOURCE
#include "tools/guard.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

#include "model/plugin/plugin.h"
#include "sim/arena.h"
#include "sim/assertion.h"
#include "tools/output.h"

enum { LOOK_EVERY_MS = 100, SECONDS_DEFAULT = 10, SIGNAL_STACK = 1 << 16, SLOT_NONE = -1 };
enum noted { NOTED_NOTHING, NOTED_CRASH, NOTED_EXIT, NOTED_FORK };

struct guard_page {
    struct plugin_watch watch;
    atomic_int finished, status;              /* of the child's work */
    atomic_int noted, number, slot;           /* enum noted; signal or status; whose slot */
    bool own_mistake;                         /* an assertion of hpsim's */
    bool called;                              /* in a function of hpsim that the plug-in called */
    bool stack;                               /* at the end of its stack */
    char function[128];                       /* where in the plug-in, as far as it has names */
    atomic_int has_scenario;
    struct scenario scenario;
    _Alignas(max_align_t) char payload[GUARD_PAYLOAD];
};

/* Of the child alone, set before it has threads. */
static struct guard_page *child_page;
static pid_t child_group;
static struct sigaction before[NSIG];
static const int crashes[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
enum { CRASHES = sizeof crashes / sizeof crashes[0] };

struct plugin_watch *guard_watch(struct guard_page *page)
{
    return page ? &page->watch : NULL;
}

void *guard_payload(struct guard_page *page)
{
    return page->payload;
}

void guard_note_scenario(struct guard_page *page, const struct scenario *scenario)
{
    if (!page) return;
    page->scenario = *scenario;
    page->scenario.plugin = NULL;
    page->scenario.config.plugin = NULL;
    page->scenario.text = NULL;
    page->scenario.config.data.text = NULL;
    atomic_store(&page->has_scenario, 1);
}

const struct scenario *guard_scenario(const struct guard_page *page)
{
    return page && atomic_load(&page->has_scenario) ? &page->scenario : NULL;
}

/* ---- in the child ---- */

static int slot_here(void)
{
    const struct watch_slot *slot = watch_current();
    return slot ? (int)(slot - child_page->watch.slots) : SLOT_NONE;
}

static uintptr_t context_stack(const ucontext_t *context)
{
#if defined(__x86_64__)
    return (uintptr_t)context->uc_mcontext.gregs[REG_RSP];
#elif defined(__aarch64__)
    return (uintptr_t)context->uc_mcontext.sp;
#else
    (void)context;
    return 0;
#endif
}

static const void *context_code(const ucontext_t *context)
{
#if defined(__x86_64__)
    return (const void *)(uintptr_t)context->uc_mcontext.gregs[REG_RIP];
#elif defined(__aarch64__)
    return (const void *)(uintptr_t)context->uc_mcontext.pc;
#else
    (void)context;
    return NULL;
#endif
}

static void note(enum noted kind, int number, int slot)
{
    int none = NOTED_NOTHING;
    if (!atomic_compare_exchange_strong(&child_page->noted, &none, (int)kind)) return; /* the first one tells */
    atomic_store(&child_page->number, number);
    atomic_store(&child_page->slot, slot);
}

static void on_crash(int signal_number, siginfo_t *info, void *context)
{
    const ucontext_t *where = context;
    uintptr_t address = (uintptr_t)info->si_addr, stack = context_stack(where);
    int slot = slot_here();
    const struct watch_slot *calling = watch_calling();
    child_page->called = slot == SLOT_NONE && calling;
    note(NOTED_CRASH, signal_number, child_page->called ? (int)(calling - child_page->watch.slots) : slot);
    child_page->own_mistake = signal_number == SIGABRT && assertion_has_failed();
    child_page->stack = signal_number == SIGSEGV && stack && (address > stack ? address - stack : stack - address) < (1 << 16);
    sigaction(signal_number, &before[signal_number], NULL); /* what was there goes on: the same instruction again, or abort's own end */
    if (signal_number == SIGABRT && before[SIGABRT].sa_handler != SIG_DFL && !(before[SIGABRT].sa_flags & SA_SIGINFO) && before[SIGABRT].sa_handler != SIG_IGN)
        before[SIGABRT].sa_handler(SIGABRT);
    /* Last, since finding names takes locks that the crash may have left taken. */
    Dl_info found;
    const void *code = context_code(where);
    if (signal_number != SIGABRT && code && dladdr(code, &found) && found.dli_sname)
        snprintf(child_page->function, sizeof child_page->function, "%s", found.dli_sname);
}

static void on_exit_called(int status, void *unused)
{
    (void)unused;
    if (child_page && !atomic_load(&child_page->finished)) note(NOTED_EXIT, status, slot_here());
}

/* Before fork() makes a copy: hpsim makes none in this process. The copy would run the ranks on, with half of what belongs to the threads. */
static void on_fork(void)
{
    note(NOTED_FORK, 0, slot_here());
    _exit(EXIT_FAILURE);
}

/* In a copy that was made by another way: it ends, and the process that it is a copy of with it. */
static void on_copy(void)
{
    note(NOTED_FORK, 0, slot_here());
    if (getpgrp() == child_group) kill(0, SIGKILL);
    _exit(EXIT_FAILURE);
}

static void give_signal_stack(void)
{
    stack_t now;
    if (sigaltstack(NULL, &now) == 0 && !(now.ss_flags & SS_DISABLE)) return; /* a sanitizer's */
    void *memory = mmap(NULL, SIGNAL_STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return;
    stack_t own = {.ss_sp = memory, .ss_size = SIGNAL_STACK};
    sigaltstack(&own, NULL);
}

static void child_main(struct guard_page *page, guard_work *work, void *context, pid_t parent)
{
#ifdef __linux__
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(EXIT_FAILURE);
#endif
    child_page = page;
    /* A group of its own, so that whatever it leaves behind can be ended with it; it may write to a terminal all the same. */
    signal(SIGTTOU, SIG_IGN);
    if (setpgid(0, 0) == 0) child_group = getpid();
    output_divert();
    pthread_atfork(on_fork, NULL, NULL);
    watch_set_in_copy(on_copy);
    struct sigaction action = {.sa_sigaction = on_crash, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
    sigemptyset(&action.sa_mask);
    for (int i = 0; i < CRASHES; i++) sigaction(crashes[i], &action, &before[crashes[i]]);
    watch_set_thread_begin(give_signal_stack);
    on_exit(on_exit_called, NULL);
    int status = work(page, context);
    atomic_store(&page->status, status);
    atomic_store(&page->finished, 1);
    fflush(NULL);
    _exit(status);
}

/* ---- in the parent ---- */

struct look { uint_fast64_t progress; double cpu_s, asleep_s; };
struct watcher { struct guard_page *page; pid_t child; double limit_s; struct look looks[WATCH_SLOTS]; int given_up; bool slept, stopped; };

/* Processor time and state of one thread of the child: from /proc, where there is one. */
static bool thread_look(const struct watcher *w, int thread, double *ret_cpu_s, char *ret_state)
{
    char path[64], text[512];
    unsigned long user = 0, system = 0;
    snprintf(path, sizeof path, "/proc/%d/task/%d/stat", (int)w->child, thread);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    if (got <= 0) return false;
    text[got] = 0;
    const char *rest = strrchr(text, ')'); /* behind the name, which may hold anything */
    if (!rest || sscanf(rest + 1, " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", ret_state, &user, &system) != 3) return false;
    *ret_cpu_s = (double)(user + system) / (double)sysconf(_SC_CLK_TCK);
    return true;
}

/* The slot that has done nothing but compute, or sleep, for too long; SLOT_NONE: none. */
static int look_around(struct watcher *w)
{
    int most = atomic_load(&w->page->watch.slots_used);
    for (int s = 0; s < most; s++) {
        struct watch_slot *slot = &w->page->watch.slots[s];
        struct look *look = &w->looks[s];
        if (atomic_load(&slot->place) != WATCH_INSIDE) {
            *look = (struct look){0};
            continue;
        }
        uint_fast64_t progress = atomic_load(&slot->progress);
        double cpu_s;
        char state = 0;
        if (!thread_look(w, atomic_load(&slot->thread), &cpu_s, &state)) continue;
        if (look->progress != progress) *look = (struct look){progress, cpu_s, 0};
        if (state == 'S' || state == 'D') look->asleep_s += 1e-3 * LOOK_EVERY_MS;
        w->slept = look->asleep_s > w->limit_s;
        if (w->slept || cpu_s - look->cpu_s > w->limit_s) return s;
    }
    return SLOT_NONE;
}

static const char *signal_words(int number)
{
    switch (number) {
    case SIGSEGV: return "a segmentation fault";
    case SIGBUS: return "a bus error";
    case SIGFPE: return "an arithmetic error such as a division by zero";
    case SIGILL: return "an illegal instruction";
    case SIGABRT: return "abort()";
    case SIGKILL: return "SIGKILL from outside (no memory?)";
    default: return strsignal(number);
    }
}

static void say(struct guard_result *result, const struct guard_page *page, int slot, const char *format, ...) __attribute__((format(printf, 4, 5)));
static void say(struct guard_result *result, const struct guard_page *page, int slot, const char *format, ...)
{
    char how[256], whose[64] = "";
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(how, sizeof how, format, arguments);
    va_end(arguments);
    const struct plugin_watch *watch = &page->watch;
    *result = (struct guard_result){.end = GUARD_PLUGIN, .status = 1, .rank = slot > 0 ? slot - 1 : -1};
    const char *name = watch->name[0] ? watch->name : watch->path;
    if (slot == SLOT_NONE) {
        snprintf(result->message, sizeof result->message, "plug-in '%.200s': %s, outside the plug-in's own code: it may have written to memory that is not its own", name, how);
        return;
    }
    const struct watch_slot *at = &watch->slots[slot];
    snprintf(result->operation, sizeof result->operation, "%s", at->operation);
    if (slot > 0) snprintf(whose, sizeof whose, "rank %d, ", slot - 1);
    snprintf(result->message, sizeof result->message, "plug-in '%.200s', %s%s: %s; its last call of hpsim: %s", name, whose, at->operation, how, at->last[0] ? at->last : "none yet");
}

static int slot_inside(const struct guard_page *page)
{
    int most = atomic_load(&page->watch.slots_used);
    for (int s = 0; s < most; s++) {
        if (atomic_load(&page->watch.slots[s].place) == WATCH_INSIDE) return s;
    }
    return SLOT_NONE;
}

/* By what the child left behind, in the order in which that can be trusted. */
static void judge(const struct watcher *w, int status, struct guard_result *result)
{
    const struct guard_page *page = w->page;
    int noted = atomic_load(&page->noted), slot = atomic_load(&page->slot), number = atomic_load(&page->number), inside = slot_inside(page);
    *result = (struct guard_result){.end = GUARD_ENDED, .rank = -1, .status = WIFEXITED(status) ? WEXITSTATUS(status) : 70};
    if (noted == NOTED_FORK) {
        say(result, page, slot >= 0 ? slot : inside, "it forked; there is one process for all ranks, and a plug-in makes no copy of it");
    } else if (atomic_load(&page->finished)) {
        result->status = atomic_load(&page->status);
    } else if (w->stopped) {
        result->status = 130;
    } else if (w->given_up != SLOT_NONE) {
        say(result, page, w->given_up, w->slept ? "it has slept for %g s without a call (an endless wait?) and was ended" : "it has computed for %g s of processor time without a call (an endless loop?) and was ended", w->limit_s);
    } else if (noted == NOTED_CRASH && page->own_mistake) {
        result->status = 70;
    } else if (noted == NOTED_CRASH && (slot >= 0 || atomic_load(&page->watch.entered))) {
        char in[160] = "";
        if (page->called) snprintf(in, sizeof in, " in a function of hpsim that it called: is there what it gave?");
        else if (page->function[0]) snprintf(in, sizeof in, " in %s()", page->function);
        say(result, page, slot, "it ended by %s%s%s", signal_words(number), in, page->stack ? ": its stack of 1 MiB is full" : "");
    } else if (noted == NOTED_EXIT && slot >= 0) {
        say(result, page, slot, "it called exit(%d)", number);
    } else if (inside >= 0 && WIFEXITED(status)) {
        say(result, page, inside, "it ended the process with status %d", WEXITSTATUS(status));
    } else if (inside >= 0 && WIFSIGNALED(status)) {
        say(result, page, inside, "it ended by %s", signal_words(WTERMSIG(status)));
    } else if (WIFSIGNALED(status)) {
        result->end = GUARD_ERROR;
        snprintf(result->message, sizeof result->message, "the process that ran plug-in '%.200s' ended by %s", page->watch.name, signal_words(WTERMSIG(status)));
    }
}

static double limit_from_environment(void)
{
    const char *text = getenv("HPSIM_PLUGIN_SECONDS");
    char *end = NULL;
    double seconds = text ? strtod(text, &end) : SECONDS_DEFAULT;
    return text && (end == text || *end || !(seconds >= 0)) ? SECONDS_DEFAULT : seconds;
}

/* Ended, but not taken away yet: so long nobody else can have its number, which is its group's, too. */
static bool has_ended(pid_t child)
{
    siginfo_t info = {0};
    return waitid(P_PID, (id_t)child, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == child;
}

/* Until the child has ended: its end of the pipe closes then, and at the latest the next look finds it. */
static int wait_for_child(struct watcher *w, int pipe_end, volatile int *stop)
{
    int status = 0;
    bool asked = false, open = true;
    while (!has_ended(w->child)) {
        struct pollfd end = {.fd = pipe_end, .events = POLLIN};
        if (poll(&end, open ? 1 : 0, open ? LOOK_EVERY_MS : 1) > 0) open = false;
        if (stop && *stop && !asked) {
            kill(w->child, SIGINT);
            asked = w->stopped = true;
        }
        if (w->limit_s == 0 || w->given_up != SLOT_NONE) continue;
        w->given_up = look_around(w);
        if (w->given_up != SLOT_NONE) kill(w->child, SIGKILL);
    }
    kill(-w->child, SIGKILL); /* what the plug-in started and left behind */
    waitpid(w->child, &status, 0);
    return status;
}

struct guard_page *guard_run(guard_work *work, void *context, volatile int *stop, struct guard_result *ret_result)
{
    int ends[2] = {-1, -1};
    struct guard_page *page = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (page == MAP_FAILED || pipe2(ends, O_CLOEXEC) != 0) {
        *ret_result = (struct guard_result){.end = GUARD_ERROR, .status = 70, .rank = -1};
        snprintf(ret_result->message, sizeof ret_result->message, "no process for a plug-in could be made: %s", strerror(errno));
        if (page != MAP_FAILED) munmap(page, sizeof *page);
        return NULL;
    }
    atomic_store(&page->slot, SLOT_NONE);
    fflush(NULL);
    pid_t parent = getpid(), child = fork();
    if (child == 0) {
        close(ends[0]);
        child_main(page, work, context, parent);
    }
    close(ends[1]);
    if (child < 0) {
        *ret_result = (struct guard_result){.end = GUARD_ERROR, .status = 70, .rank = -1};
        snprintf(ret_result->message, sizeof ret_result->message, "no process for a plug-in could be made: %s", strerror(errno));
    } else {
        struct watcher *w = memory_zalloc(sizeof *w);
        w->page = page;
        w->child = child;
        w->limit_s = limit_from_environment();
        w->given_up = SLOT_NONE;
        judge(w, wait_for_child(w, ends[0], stop), ret_result);
        free(w);
    }
    close(ends[0]);
    return page;
}

void guard_done(struct guard_page *page)
{
    if (page) munmap(page, sizeof *page);
}
