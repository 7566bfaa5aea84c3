/* suite_run: up to `jobs` children at a time. A child runs one scenario and writes its row, which is
 * smaller than a pipe holds, so it never waits for its parent; the parent waits for whoever ends. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif
#include "sim/arena.h"
#include "sim/assertion.h"
#include "tools/guard.h"
#include "tools/interrupt.h"
#include "tools/report/describe.h"
#include "tools/report/report.h"
#include "tools/suite.h"

enum { INTERRUPTED = 130 };
struct child { pid_t pid; int pipe, row; size_t received; };

struct suite_state {
    struct suite *suite;
    const struct scenario_options *wanted;
    const struct experiment_options *experiment;
    struct child *children; int jobs, running, next, reported;
    bool *finished;
};

/* "pp4_fsdp2" from ".../pp4_fsdp2.json" */
static void name_from_path(struct suite_row *row, const char *path)
{
    const char *base = strrchr(path, '/');
    snprintf(row->scenario, sizeof row->scenario, "%s", base ? base + 1 : path);
    size_t length = strlen(row->scenario);
    if (length > 5 && !strcmp(row->scenario + length - 5, ".json")) row->scenario[length - 5] = 0;
}

static void fill_from_result(struct suite_row *row, const struct result *result)
{
    row->end = SUITE_RAN;
    row->verdict = result->verdict;
    row->as_expected = report_exit_status(result) == 0;
    row->wall_s = result->wall_s;
    if (result->has_diagnosis) snprintf(row->component, sizeof row->component, "%s", result->diagnosis.component);
    size_t used = 0;
    for (int i = 0; i < result->checks_count; i++) {
        if (result->checks[i].status != CHECK_FAIL || used >= sizeof row->failed_checks) continue;
        used += (size_t)snprintf(row->failed_checks + used, sizeof row->failed_checks - used, "%s%s", used ? "," : "",
                                 result->checks[i].id);
    }
    if (row->as_expected) return;
    snprintf(row->why, sizeof row->why, "%s", result->expected_why);
    for (int i = 0; i < result->faults_count && !row->why[0]; i++) {
        if (result->faults[i].outcome == FAULT_NOT_HIT)
            snprintf(row->why, sizeof row->why, "%s was never hit", result->faults[i].fault);
    }
}

static void run_here(const struct suite_state *state, const char *path, struct suite_row *row, struct guard_page *page)
{
    struct scenario_options options = *state->wanted, *wanted = &options;
    wanted->watch = guard_watch(page);
    struct error error = {0};
    struct scenario *scenario = scenario_load(path, wanted, &error);
    struct result *result = NULL;
    if (scenario) {
        guard_note_scenario(page, scenario);
        char text[DESCRIBE_TEXT];
        snprintf(row->scenario, sizeof row->scenario, "%s", scenario->name);
        snprintf(row->expected, sizeof row->expected, "%.250s", describe_expectation(&scenario->expect, text));
        assertion_set_replay(path);
        result = experiment_run(scenario, state->experiment, &error);
    }
    if (result) {
        fill_from_result(row, result);
    } else if (error_is_set(&error)) {
        row->end = error.kind == ERROR_INTERNAL ? SUITE_CRASHED : SUITE_REFUSED;
        error_text(&error, row->why, sizeof row->why);
    } else {
        row->end = SUITE_NOT_RUN;
    }
    result_free(result);
    scenario_free(scenario);
}

struct watched { const struct suite_state *state; const char *path; };

static int run_watched(struct guard_page *page, void *context)
{
    const struct watched *job = context;
    run_here(job->state, job->path, guard_payload(page), page);
    return 0;
}

/* A scenario with a plug-in has a process of its own within this one. */
static void run_one(const struct suite_state *state, const char *path, struct suite_row *row)
{
    if (!scenario_has_plugin(path, state->wanted)) {
        run_here(state, path, row, NULL);
        return;
    }
    struct watched job = {state, path};
    struct guard_result how;
    struct guard_page *page = guard_run(run_watched, &job, interrupt_stop(), &how);
    struct result *result = how.end == GUARD_PLUGIN ? guard_result_new(page, &how) : NULL;
    _Static_assert(sizeof *row <= GUARD_PAYLOAD, "a row crosses in the page");
    if (how.end == GUARD_ENDED && how.status == 0) {
        memcpy(row, guard_payload(page), sizeof *row);
    } else if (result) {
        char text[DESCRIBE_TEXT];
        snprintf(row->scenario, sizeof row->scenario, "%s", result->scenario->name);
        snprintf(row->expected, sizeof row->expected, "%.250s", describe_expectation(&result->scenario->expect, text));
        fill_from_result(row, result);
        if (!row->as_expected) snprintf(row->why, sizeof row->why, "%s", how.message);
    } else {
        row->end = how.status == INTERRUPTED ? SUITE_NOT_RUN : SUITE_CRASHED;
        snprintf(row->scenario, sizeof row->scenario, "%.120s", path);
        snprintf(row->why, sizeof row->why, "%s", how.message[0] ? how.message : "hpsim itself failed");
    }
    guard_result_free(result);
    guard_done(page);
}

static void child_main(const struct suite_state *state, int at, int pipe_end)
{
#ifdef __linux__
    prctl(PR_SET_PDEATHSIG, SIGKILL);
#endif
    struct suite_row *row = &state->suite->rows[at];
    run_one(state, state->suite->paths[at], row);
    const char *data = (const char *)row;
    for (size_t sent = 0; sent < sizeof *row;) {
        ssize_t n = write(pipe_end, data + sent, sizeof *row - sent);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        sent += (size_t)n;
    }
    _exit(row->end == SUITE_NOT_RUN ? INTERRUPTED : 0);
}

static void fail_row(struct suite_state *state, int at, enum suite_end end, const char *what, int number)
{
    struct suite_row *row = &state->suite->rows[at];
    memset(row, 0, sizeof *row);
    row->end = end;
    name_from_path(row, state->suite->paths[at]);
    snprintf(row->why, sizeof row->why, what, number);
    state->finished[at] = true;
}

static void start(struct suite_state *state)
{
    int at = state->next++, ends[2];
    struct child *child = &state->children[state->running];
    name_from_path(&state->suite->rows[at], state->suite->paths[at]);
    fflush(stdout);
    fflush(stderr);
    if (pipe(ends) != 0) {
        fail_row(state, at, SUITE_REFUSED, "no pipe could be made (error %d)", errno);
        return;
    }
    pid_t pid = fork();
    if (pid == 0) {
        close(ends[0]);
        child_main(state, at, ends[1]);
    }
    close(ends[1]);
    if (pid < 0) {
        fail_row(state, at, SUITE_REFUSED, "no process could be made (error %d)", errno);
        close(ends[0]);
        return;
    }
    *child = (struct child){.pid = pid, .pipe = ends[0], .row = at};
    state->running++;
}

static void finish(struct suite_state *state, struct child *child)
{
    int status = 0;
    close(child->pipe);
    while (waitpid(child->pid, &status, 0) < 0 && errno == EINTR) {}
    bool whole = child->received == sizeof(struct suite_row);
    if (!whole && WIFSIGNALED(status))
        fail_row(state, child->row, SUITE_CRASHED, "hpsim itself failed: ended by signal %d", WTERMSIG(status));
    else if (!whole && WEXITSTATUS(status) == ERROR_INPUT)
        fail_row(state, child->row, SUITE_REFUSED, "ended with status %d: no memory?", ERROR_INPUT);
    else if (!whole && WEXITSTATUS(status) != INTERRUPTED) {
        fail_row(state, child->row, SUITE_CRASHED, "hpsim itself failed: ended with status %d", WEXITSTATUS(status));
    } else if (!whole || state->suite->rows[child->row].end == SUITE_NOT_RUN) {
        fail_row(state, child->row, SUITE_NOT_RUN, "interrupted (%d)", INTERRUPTED);
    }
    state->finished[child->row] = true;
    *child = state->children[--state->running];
}

/* Reads from whoever has written or ended; false when a signal came in. */
static bool wait_for_some(struct suite_state *state)
{
    struct pollfd *polls = memory_alloc((size_t)state->running * sizeof *polls);
    for (int i = 0; i < state->running; i++)
        polls[i] = (struct pollfd){.fd = state->children[i].pipe, .events = POLLIN};
    int ready = poll(polls, (nfds_t)state->running, -1);
    for (int i = state->running - 1; ready > 0 && i >= 0; i--) {
        struct child *child = &state->children[i];
        if (!polls[i].revents) continue;
        char *row = (char *)&state->suite->rows[child->row], surplus;
        bool full = child->received == sizeof(struct suite_row);
        ssize_t n = full ? read(child->pipe, &surplus, 1)
                         : read(child->pipe, row + child->received, sizeof(struct suite_row) - child->received);
        if (n > 0 && !full) child->received += (size_t)n;
        else if (n == 0) finish(state, child); /* the last one takes its place in the list, and was already looked at */
    }
    free(polls);
    return ready > 0;
}

static void report_finished(struct suite_state *state, suite_report *report, void *context)
{
    while (state->reported < state->suite->count && state->finished[state->reported])
        report(context, state->suite, state->reported++);
}

static void stop_children(struct suite_state *state)
{
    for (int i = 0; i < state->running; i++) kill(state->children[i].pid, SIGKILL);
    while (state->running > 0) {
        struct child *child = &state->children[state->running - 1];
        int row = child->row;
        finish(state, child);
        if (state->suite->rows[row].end == SUITE_CRASHED)
            fail_row(state, row, SUITE_NOT_RUN, "interrupted (%d)", INTERRUPTED);
    }
    for (int i = state->next; i < state->suite->count; i++)
        fail_row(state, i, SUITE_NOT_RUN, "interrupted (%d)", INTERRUPTED);
}

bool suite_run(struct suite *suite, const struct scenario_options *wanted, const struct experiment_options *experiment,
               int jobs, suite_report *report, void *context)
{
    struct suite_state state = {.suite = suite, .wanted = wanted, .experiment = experiment, .jobs = jobs};
    state.children = memory_zalloc((size_t)jobs * sizeof *state.children);
    state.finished = memory_zalloc((size_t)suite->count * sizeof *state.finished);
    volatile int *stop = interrupt_stop();
    while (!*stop && (state.running > 0 || state.next < suite->count)) {
        while (!*stop && state.running < jobs && state.next < suite->count) start(&state);
        if (state.running > 0) wait_for_some(&state);
        report_finished(&state, report, context);
    }
    bool whole = state.next == suite->count && state.running == 0;
    stop_children(&state);
    report_finished(&state, report, context);
    free(state.children);
    free(state.finished);
    return whole;
}
