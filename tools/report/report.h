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
