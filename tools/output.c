/* output: written beside the goal and renamed over it. A symbolic link keeps pointing where it did. */
#include "tools/output.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "sim/arena.h"
#include "tools/interrupt.h"

static FILE *diverted; /* NULL: it is stdout */

FILE *output_stream(void)
{
    return diverted ? diverted : stdout;
}

void output_divert(void)
{
    enum { BEYOND_STANDARD = 3 };
    fflush(stdout);
    int own = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, BEYOND_STANDARD);
    if (own < 0) return;
    diverted = fdopen(own, "w");
    if (!diverted) {
        close(own);
    } else if (dup2(STDERR_FILENO, STDOUT_FILENO) < 0) {
        fclose(diverted);
        diverted = NULL;
    }
}

struct goal { char path[4096], temporary[4104]; bool direct; };

static bool goal_find(struct goal *goal, const char *path, struct error *error)
{
    struct stat status;
    bool exists = stat(path, &status) == 0;
    if (exists && S_ISDIR(status.st_mode)) return error_input(error, "cannot write \"%s\": it is a folder", path);
    char *resolved = exists ? realpath(path, NULL) : NULL;
    size_t length = strlen(resolved ? resolved : path);
    if (length + 5 > sizeof goal->path) {
        free(resolved);
        return error_input(error, "cannot write \"%.60s...\": the path is too long", path);
    }
    memcpy(goal->path, resolved ? resolved : path, length + 1);
    free(resolved);
    goal->direct = exists && !S_ISREG(status.st_mode);
    snprintf(goal->temporary, sizeof goal->temporary, "%s%s", goal->path, goal->direct ? "" : ".tmp");
    return true;
}

bool output_check(const char *path, const char *option, struct error *error)
{
    struct goal goal;
    if (!path || !strcmp(path, "-")) return true;
    if (!goal_find(&goal, path, error)) return false;
    int flags = goal.direct ? O_WRONLY | O_NONBLOCK : O_WRONLY | O_CREAT | O_TRUNC;
    int descriptor = open(goal.temporary, flags | O_CLOEXEC, 0666);
    if (descriptor < 0 && !(goal.direct && errno == ENXIO)) { /* ENXIO: a pipe that nobody reads yet */
        return error_input(error, "cannot write --%s \"%s\": %s", option, path, strerror(errno));
    }
    if (descriptor >= 0) close(descriptor);
    if (!goal.direct) unlink(goal.temporary);
    return true;
}

bool output_is_replaceable(const char *path)
{
    struct stat status;
    return stat(path, &status) != 0 || S_ISREG(status.st_mode);
}

static bool write_all(int descriptor, const char *text)
{
    size_t left = strlen(text);
    while (left > 0) {
        ssize_t written = write(descriptor, text, left);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) return false;
        text += written;
        left -= (size_t)written;
    }
    return true;
}

bool output_write(const char *path, const char *text, struct error *error)
{
    struct goal goal;
    if (!strcmp(path, "-")) {
        fputs(text, output_stream());      /* what is lost there is noticed at the end of the program */
        return true;
    }
    if (!goal_find(&goal, path, error)) return false;
    if (!goal.direct) interrupt_temporary(goal.temporary);
    int descriptor = open(goal.temporary, (goal.direct ? O_WRONLY : O_WRONLY | O_CREAT | O_TRUNC) | O_CLOEXEC, 0666);
    bool good = descriptor >= 0 && write_all(descriptor, text);
    int reason = errno;
    if (descriptor >= 0 && close(descriptor) != 0 && good) {
        good = false;
        reason = errno;
    }
    if (good && !goal.direct && rename(goal.temporary, goal.path) != 0) {
        good = false;
        reason = errno;
    }
    if (!good && !goal.direct && descriptor >= 0) unlink(goal.temporary);
    interrupt_temporary(NULL);
    return good || error_input(error, "cannot write \"%s\": %s", path, strerror(reason));
}
