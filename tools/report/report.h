/* report: a result as text, JSON, CSV, XML. Rendering only: nothing here decides anything. */
#ifndef TOOLS_REPORT_REPORT_H
#define TOOLS_REPORT_REPORT_H

#include "scenarios/result.h"
#include "tools/report/terminal.h"

struct report {
    const struct result *result;
    const struct experiment_options *options;
    bool quiet, verbose;
};

/* text.c: the report of `hpsim run`. */
void report_text(const struct report *report, const struct terminal *terminal);
/* text_details.c: what --verbose adds. text_deadlock.c: the cycle as a picture. */
void report_text_details(const struct report *report, const struct terminal *terminal);
void report_text_deadlock(const struct result *result, const struct terminal *terminal);
/* context_text.c: workload attention: shards, numbers, who consumed what. */
void report_context_text(const struct report *report, const struct terminal *terminal);
/* denoise_text.c: workload denoise: the difference by iteration. */
void report_denoise_text(const struct report *report, const struct terminal *terminal);
/* context_tolerances.c: what tests of public projects would have said of this run's numbers. */
struct tolerance_result { const char *test, *rule; double value, limit; bool passes; };
enum { TOLERANCES_MAX = 16 };
int context_tolerances(const struct result *result, struct tolerance_result ret[TOLERANCES_MAX]);
/* context_ranges.c: "0-8, 75-82", "1-81 step 5". */
enum { RANGES_TEXT = 96 };
const char *context_ranges(const int32_t *positions, int64_t count, char text[RANGES_TEXT]);
/* How often member c's block is in member r's output, group `group`: by ledgers, else by outputs; false: neither. [members * members] */
bool context_consumed(const struct result *result, int group, bool backward, int *ret_got, int *ret_due, const char **ret_source);
/* json.c, csv.c: malloc'd text. */
char *report_json(const struct report *report);
char *report_csv(const struct result *result);
/* dump.c: parameters after the last step and its gradients (as grad.<name>), put together from the shards. */
bool report_dump(const struct result *result, const char *path, struct error *error);

/* communication.c: what all ranks sent, by purpose, operation, group, algorithm and format. */
struct communication_share { uint64_t messages, bytes; };
struct communication_row {
    const char *purpose, *op, *group, *algorithm; enum format format;
    uint64_t count, messages, bytes;            /* calls of a group once each; sent, over all ranks */
    struct communication_share *per_rank;       /* [ranks] */
};
struct communication { int count; struct communication_row *rows; };
struct communication communication_sum(const struct record *record);
void communication_done(struct communication *communication);

/* Was the run as its expectation says, and every fault hit? The exit status 0 or 1. */
int report_exit_status(const struct result *result);

#endif
