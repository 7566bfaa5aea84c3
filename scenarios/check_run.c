/* check_run: the registry of checks, their outputs, their selection. */
#include "scenarios/check_run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "scenarios/facts.h"
#include "sim/assertion.h"

#define CHECK(identifier) extern const struct check check_##identifier;
#include "scenarios/checks.def"
#undef CHECK

static const struct check *const checks[] = {
#define CHECK(identifier) &check_##identifier,
#include "scenarios/checks.def"
#undef CHECK
};

int check_count(void)
{
    return (int)(sizeof checks / sizeof checks[0]);
}

const struct check *check_at(int i)
{
    return i >= 0 && i < check_count() ? checks[i] : NULL;
}

const struct check *check_find_by_id(const char *id)
{
    for (int i = 0; i < check_count(); i++) {
        if (!strcmp(checks[i]->id, id)) return checks[i];
    }
    return NULL;
}

const char *check_elsewhere(const struct check *check, enum workload workload, char text[160])
{
    static const char *const there[] = {"training", "a sampler that only applies layers", "one attention without parameters or steps"};
    unsigned reads = check->workloads ? check->workloads : CHECK_IN(WORKLOAD_TRAIN);
    if (reads & CHECK_IN(workload)) return NULL;
    snprintf(text, 160, "this workload is %s: there is nothing of what it looks at", there[workload]);
    return text;
}

/* ---- what a check hands in ---- */

/* A fault that shows everywhere and in every step could fill any memory; the count goes on. Checks go through
 * the steps in order, so what is kept is the first. */
enum { KEPT_MAX = 4096 };

struct check_output {
    const struct check *check;
    struct finding *findings; int kept, capacity, count;
    double value, limit; bool measured;
    char skipped[320], warning[WARNING_TEXT];
};

void check_find(struct check_output *output, const struct finding *finding)
{
    output->count++;
    if (output->kept == KEPT_MAX) return;
    if (output->kept == output->capacity) {
        output->capacity = output->capacity ? 2 * output->capacity : 64;
        output->findings = memory_realloc(output->findings, (size_t)output->capacity * sizeof *output->findings);
    }
    output->findings[output->kept] = *finding;
    output->findings[output->kept++].check = output->check->id;
}

/* Which of two (value, limit) pairs is worse; what is not a number is worst. */
static bool worse(double value, double limit, double than_value, double than_limit)
{
    if (isnan(than_value)) return false;
    if (isnan(value)) return true;
    double a = limit > 0 ? value / limit : value > 0 ? INFINITY : 0;
    double b = than_limit > 0 ? than_value / than_limit : than_value > 0 ? INFINITY : 0;
    return a > b || (a == b && value > than_value);
}

void check_value(struct check_output *output, double value, double limit)
{
    if (output->measured && !worse(value, limit, output->value, output->limit)) return;
    output->measured = true;
    output->value = value;
    output->limit = limit;
}

void check_skip(struct check_output *output, const char *why)
{
    snprintf(output->skipped, sizeof output->skipped, "%s", why);
}

void check_warn(struct check_output *output, const char *text)
{
    snprintf(output->warning, sizeof output->warning, "%s", text);
}

static void run_one(const struct check *check, const struct evidence *evidence, struct check_output *output,
                    struct check_result *ret_result)
{
    *output = (struct check_output){.check = check, .value = NAN, .limit = NAN};
    check->run(evidence, output);
    memset(ret_result, 0, sizeof *ret_result);
    ret_result->id = check->id;
    ret_result->value = output->value;
    ret_result->limit = output->limit;
    ret_result->findings = output->count;
    ret_result->place = PLACE_NONE;
    ret_result->status = output->count ? CHECK_FAIL : output->skipped[0] ? CHECK_SKIP : CHECK_PASS;
    if (output->count) {
        ret_result->place = output->findings[0].place;
        snprintf(ret_result->why, sizeof ret_result->why, "%s", output->findings[0].text);
    } else {
        snprintf(ret_result->why, sizeof ret_result->why, "%s", output->skipped);
    }
}

int check_run_alone(const struct check *check, const struct evidence *evidence, struct check_result *ret_result,
                    struct finding *ret_findings, int max)
{
    struct check_output output;
    run_one(check, evidence, &output, ret_result);
    for (int i = 0; i < output.kept && i < max; i++) ret_findings[i] = output.findings[i];
    free(output.findings);
    return output.count;
}

static void skip(const struct check *check, const char *why, struct check_result *ret_result)
{
    *ret_result =
        (struct check_result){.id = check->id, .status = CHECK_SKIP, .value = NAN, .limit = NAN, .place = PLACE_NONE};
    snprintf(ret_result->why, sizeof ret_result->why, "%s", why);
}

void checks_run(const struct evidence *evidence, const struct check_selection *selection, struct result *result)
{
    int count = check_count(), kept = 0;
    ASSERT(count <= CHECKS_MAX);
    struct check_output *outputs = memory_zalloc((size_t)count * sizeof *outputs);
    result->checks_count = count;
    result->checks = arena_zalloc(result->arena, (size_t)count * sizeof *result->checks);
    for (int i = 0; i < count; i++) {
        char elsewhere[160];
        if (check_elsewhere(checks[i], evidence->config->workload, elsewhere)) skip(checks[i], elsewhere, &result->checks[i]);
        else if (selection->taken[i]) run_one(checks[i], evidence, &outputs[i], &result->checks[i]);
        else skip(checks[i], "not selected (--checks)", &result->checks[i]);
        kept += outputs[i].kept;
    }
    result->findings = arena_zalloc(result->arena, (size_t)(kept + 1) * sizeof *result->findings);
    for (int i = 0; i < count; i++) {
        if (outputs[i].warning[0] && result->warnings_count < WARNINGS_MAX)
            memcpy(result->warnings[result->warnings_count++], outputs[i].warning, WARNING_TEXT);
        for (int k = 0; k < outputs[i].kept; k++) result->findings[result->findings_count++] = outputs[i].findings[k];
        free(outputs[i].findings);
    }
    free(outputs);
}

/* ---- selection ---- */

static int index_of(const char *id, size_t length)
{
    for (int i = 0; i < check_count(); i++) {
        if (strlen(checks[i]->id) == length && !strncmp(checks[i]->id, id, length)) return i;
    }
    return -1;
}

static bool select_word(const char *word, size_t length, bool first, struct check_selection *selection,
                        struct error *error)
{
    bool leave_out = word[0] == '-';
    if (length == 7 && !strncmp(word, "default", 7)) return true;
    if (length == 4 && !strncmp(word, "deep", 4)) {
        selection->deep = true;
        return true;
    }
    int i = index_of(word + leave_out, length - (size_t)leave_out);
    if (i < 0) {
        error_input(error, "--checks: there is no check '%.*s'", (int)(length - (size_t)leave_out), word + leave_out);
        error_hint(error, "'hpsim checks' lists them; 'default' and 'deep' take all");
        return false;
    }
    if (!leave_out) selection->listed = true;
    if (first && !leave_out) memset(selection->taken, 0, sizeof selection->taken); /* a list names all that it wants */
    selection->taken[i] = !leave_out;
    return true;
}

bool check_select(const char *list, struct check_selection *ret_selection, struct error *error)
{
    *ret_selection = (struct check_selection){0};
    for (int i = 0; i < check_count(); i++) ret_selection->taken[i] = true;
    bool first = true;
    while (list && *list) {
        size_t length = strcspn(list, ",");
        if (length > 0) {
            if (!select_word(list, length, first, ret_selection, error)) return false;
            first = false;
        }
        list += length + (list[length] == ',');
    }
    return true;
}
