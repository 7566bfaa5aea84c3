/* suite: collecting the files. Names are compared byte by byte, whatever the locale. */
#include "tools/suite.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "sim/arena.h"

enum { DEPTH_MAX = 32 };

static void add_path(struct suite *suite, const char *path)
{
    suite->paths = memory_realloc(suite->paths, (size_t)(suite->count + 1) * sizeof *suite->paths);
    suite->paths[suite->count++] = memory_strdup(path);
}

static int by_bytes(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static bool ends_in_json(const char *name)
{
    size_t length = strlen(name);
    return length > 5 && !strcmp(name + length - 5, ".json");
}

static char **read_names(const char *folder, int *ret_count)
{
    DIR *dir = opendir(folder);
    char **names = NULL;
    int count = 0;
    if (!dir) return NULL;
    for (struct dirent *entry = readdir(dir); entry; entry = readdir(dir)) {
        if (entry->d_name[0] == '.') continue;
        names = memory_realloc(names, (size_t)(count + 1) * sizeof *names);
        names[count++] = memory_strdup(entry->d_name);
    }
    closedir(dir);
    if (count) qsort(names, (size_t)count, sizeof *names, by_bytes);
    *ret_count = count;
    return names ? names : memory_zalloc(sizeof *names);
}

static bool collect_folder(struct suite *suite, const char *folder, int depth, struct error *error)
{
    int count = 0;
    char **names = depth < DEPTH_MAX ? read_names(folder, &count) : NULL;
    if (!names)
        return error_input(error, "cannot read the folder \"%s\": %s", folder,
                           depth < DEPTH_MAX ? strerror(errno) : "too deep");
    bool good = true;
    for (int i = 0; i < count; i++) {
        char path[4096];
        struct stat status;
        size_t length = strlen(folder);
        snprintf(path, sizeof path, "%s%s%s", folder, length && folder[length - 1] == '/' ? "" : "/", names[i]);
        bool known = good && stat(path, &status) == 0;
        if (known && S_ISDIR(status.st_mode)) good = collect_folder(suite, path, depth + 1, error);
        else if (known && S_ISREG(status.st_mode) && ends_in_json(names[i])) add_path(suite, path);
        free(names[i]);
    }
    free(names);
    return good;
}

bool suite_collect(struct suite *suite, const char *const *paths, int count, struct error *error)
{
    *suite = (struct suite){0};
    for (int i = 0; i < count; i++) {
        struct stat status;
        if (stat(paths[i], &status) != 0)
            return error_input(error, "cannot read \"%s\": %s", paths[i], strerror(errno));
        if (!S_ISDIR(status.st_mode)) add_path(suite, paths[i]);
        else if (!collect_folder(suite, paths[i], 0, error)) return false;
    }
    if (suite->count == 0)
        return error_input(error, "no scenario found: no *.json under %s%s", paths[0],
                           count > 1 ? " and the other paths" : "");
    suite->rows = memory_zalloc((size_t)suite->count * sizeof *suite->rows);
    for (int i = 0; i < suite->count; i++) suite->rows[i].end = SUITE_NOT_RUN;
    return true;
}

void suite_done(struct suite *suite)
{
    for (int i = 0; i < suite->count; i++) free(suite->paths[i]);
    free(suite->paths);
    free(suite->rows);
    *suite = (struct suite){0};
}

bool suite_row_passed(const struct suite_row *row)
{
    return row->end == SUITE_RAN && row->as_expected;
}
