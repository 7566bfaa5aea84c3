/* interrupt: the first Ctrl-C asks the run to stop at its next round; whatever is busy elsewhere is ended
 * by force a little later, so that a run always ends in under a second; a second Ctrl-C ends it at once.
 * Handlers only set flags and make async-signal-safe calls. */
#include "tools/interrupt.h"

#include <signal.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

enum { FORCE_AFTER_US = 700000, STATUS_INTERRUPTED = 130, STATUS_OWN_FAULT = 70 };

static volatile int stop;
static volatile sig_atomic_t pipe_closed;
static volatile sig_atomic_t temporary_set;
static char temporary[4200];

static void end_by_force(int signal_number)
{
    (void)signal_number;
    if (temporary_set) unlink(temporary);
    _exit(STATUS_INTERRUPTED);
}

/* A mistake in hpsim itself has said so (sim/assertion.c): the promised status, and no half-written file. */
static void on_abort(int signal_number)
{
    (void)signal_number;
    if (temporary_set) unlink(temporary);
    _exit(STATUS_OWN_FAULT);
}

static void on_stop(int signal_number)
{
    if (stop) end_by_force(signal_number);
    stop = 1;
    struct itimerval timer = {.it_value = {0, FORCE_AFTER_US}};
    setitimer(ITIMER_REAL, &timer, NULL);
}

static void on_pipe(int signal_number)
{
    (void)signal_number;
    pipe_closed = 1;
}

void interrupt_install(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    sigemptyset(&action.sa_mask);
    action.sa_handler = on_stop;
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    action.sa_handler = end_by_force;
    sigaction(SIGALRM, &action, NULL);
    action.sa_handler = on_abort;
    sigaction(SIGABRT, &action, NULL);
    action.sa_handler = on_pipe;
    sigaction(SIGPIPE, &action, NULL);
}

volatile int *interrupt_stop(void)
{
    return &stop;
}

bool interrupt_pipe_closed(void)
{
    return pipe_closed;
}

void interrupt_temporary(const char *path)
{
    temporary_set = 0;
    if (!path || strlen(path) >= sizeof temporary) return;
    strcpy(temporary, path);
    temporary_set = 1;
}
