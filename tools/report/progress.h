/* progress: how far a run is, on a terminal's standard error and only there. */
#ifndef TOOLS_REPORT_PROGRESS_H
#define TOOLS_REPORT_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

struct progress { bool shown; int run, percent; int64_t last_done; };

struct progress progress_new(bool wanted);
void progress_update(void *progress, int64_t done, int64_t total); /* for train_options.progress */
void progress_count(struct progress *progress, int done, int total, const char *what);
void progress_clear(struct progress *progress);

#endif
