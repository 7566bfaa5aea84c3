/* progress: one line that is written over. It is written when the percentage changes, so that no clock is
 * asked. A count that goes back means that the next run has begun. */
#include "tools/report/progress.h"

#include <stdio.h>
#include <unistd.h>

struct progress progress_new(bool wanted)
{
    return (struct progress){.shown = wanted && isatty(STDERR_FILENO), .percent = -1, .run = 1};
}

void progress_update(void *progress, int64_t done, int64_t total)
{
    struct progress *p = progress;
    if (!p->shown || total <= 0) return;
    if (done < p->last_done) {
        p->run++;
        p->percent = -1;
    }
    p->last_done = done;
    int percent = (int)(100 * done / total);
    if (percent == p->percent) return;
    p->percent = percent;
    fprintf(stderr, "\rrun %d: %3d %%\033[K", p->run, percent);
    fflush(stderr);
}

void progress_count(struct progress *progress, int done, int total, const char *what)
{
    if (!progress->shown) return;
    progress->percent = 0;
    fprintf(stderr, "\r%d of %d %s\033[K", done, total, what);
    fflush(stderr);
}

void progress_clear(struct progress *progress)
{
    if (!progress->shown || progress->percent < 0) return;
    progress->percent = -1;
    fputs("\r\033[K", stderr);
    fflush(stderr);
}
