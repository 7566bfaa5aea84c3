/* guard: work with a plug-in runs in a child process, and this one says what the plug-in did when the child does not come back.
 *
 * Both share a page: what each rank's plug-in is doing (model/plugin/watch.h), what scenario it is, and what ended the child.
 *   crash      a handler in the child, on a stack of its own, notes whose code ran (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT)
 *   exit()     noted by a function at exit; _exit() by the slot that is still inside
 *   fork()     ended before there is a copy; a copy made otherwise ends where it comes back to hpsim; what the plug-in started
 *              and left behind is ended with the child, whose process group it is in
 *   endless    the parent looks ten times a second: who is in the plug-in's own code, made no call, and used its thread's
 *              processor time for HPSIM_PLUGIN_SECONDS (10; 0: never), or slept as long, is ended
 * What a plug-in writes to standard output goes to standard error: the former is the report's (tools/output.h).
 * Not found: what writes where it must not and lets another fall over it later. Then both are named. */
#ifndef TOOLS_GUARD_H
#define TOOLS_GUARD_H

#include "scenarios/result.h"

struct guard_page;

/* In the child; returns its exit status. */
typedef int guard_work(struct guard_page *page, void *context);

enum guard_end {
    GUARD_ENDED,               /* it ended by itself: status */
    GUARD_PLUGIN,              /* the plug-in ended it */
    GUARD_ERROR,               /* no process could be made, or nobody here is to blame for its end: message */
};
struct guard_result {
    enum guard_end end;
    int status;
    int rank;                  /* whose plug-in it was; -1: of none */
    char operation[128];       /* what it was called for; "" where it was not in it */
    char message[1024];        /* one sentence: plug-in, rank, operation, last call, how it ended */
};
/* stop: borrowed, non-zero asks the child to stop (SIGINT); may be NULL. */
struct guard_page *guard_run(guard_work *work, void *context, volatile int *stop, struct guard_result *ret_result); /* free with guard_done */
void guard_done(struct guard_page *page);   /* accepts NULL */

/* ---- for the child ---- */
struct plugin_watch *guard_watch(struct guard_page *page);   /* NULL for NULL */
void guard_note_scenario(struct guard_page *page, const struct scenario *scenario); /* accepts a page of NULL */
/* Room that the parent reads afterwards. */
enum { GUARD_PAYLOAD = 4096 };
void *guard_payload(struct guard_page *page);

/* ---- for the parent ---- */
/* guard_report.c: a result that says so: verdict violated, check and component "plugin". NULL: the scenario was never read.
 * The caller frees it with guard_result_free. */
struct result *guard_result_new(const struct guard_page *page, const struct guard_result *ended);
void guard_result_free(struct result *result);
const struct scenario *guard_scenario(const struct guard_page *page); /* NULL: never read */

#endif
