/* input_file: see the header. A named pipe or a device is refused without being opened for waiting. */
#include "scenarios/input_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sim/arena.h"

static bool fail_errno(const char *subject, int number, struct error *error)
{
    switch (number) {
    case ENOENT:
    case ENOTDIR: return error_input(error, "%sdoes not exist", subject);
    case EACCES:
    case EPERM: return error_input(error, "%smay not be read (permission denied)", subject);
    default: return error_input(error, "%scannot be read: %s", subject, strerror(number));
    }
}

static bool check_kind(const struct stat *status, const char *subject, struct error *error)
{
    if (S_ISDIR(status->st_mode)) return error_input(error, "%sis a folder, not a file", subject);
    if (!S_ISREG(status->st_mode))
        return error_input(error, "%sis not a regular file but a pipe, socket or device", subject);
    return true;
}

/* -1: error set. */
static int open_plain(const char *path, const char *subject, struct stat *ret_status, struct error *error)
{
    int fd = -1;
    bool good =
        stat(path, ret_status) == 0 ? check_kind(ret_status, subject, error) : fail_errno(subject, errno, error);
    if (!good) return -1;
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) {
        fail_errno(subject, errno, error);
        return -1;
    }
    /* Once more on what is open now: the name may have changed its meaning in between. */
    good = fstat(fd, ret_status) == 0 ? check_kind(ret_status, subject, error) : fail_errno(subject, errno, error);
    if (good) return fd;
    close(fd);
    return -1;
}

bool input_file_check(const char *path, const char *subject, struct error *error)
{
    struct stat status;
    int fd = open_plain(path, subject, &status, error);
    if (fd < 0) return false;
    close(fd);
    return true;
}

char *input_file_read(const char *path, size_t bytes_max, const char *subject, size_t *ret_bytes, struct error *error)
{
    struct stat status;
    int fd = open_plain(path, subject, &status, error);
    if (fd < 0) return NULL;
    char *text = NULL;
    size_t size = (size_t)status.st_size, used = 0;
    if (size > bytes_max) {
        error_input(error, "%shas %llu bytes; at most %llu are allowed", subject, (unsigned long long)size,
                    (unsigned long long)bytes_max);
    } else if (size == 0) {
        error_input(error, "%sis empty", subject);
    } else {
        text = memory_alloc(size + 1);
    }
    while (text && used < size) { /* what is appended while we read is left out */
        ssize_t got = read(fd, text + used, size - used);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) {
            if (got < 0) fail_errno(subject, errno, error);
            else error_input(error, "%sbecame shorter while it was read", subject);
            free(text);
            text = NULL;
            break;
        }
        used += (size_t)got;
    }
    close(fd);
    if (!text) return NULL;
    text[used] = 0;
    *ret_bytes = used;
    return text;
}
