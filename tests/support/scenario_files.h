/* scenario_files: scenarios in a folder of their own, for tests of the loader. */
#ifndef TESTS_SUPPORT_SCENARIO_FILES_H
#define TESTS_SUPPORT_SCENARIO_FILES_H

#include <check.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "scenarios/scenario.h"

static char files_folder[256];

static inline void files_setup(void)
{
    const char *base = getenv("TMPDIR");
    snprintf(files_folder, sizeof files_folder, "%s/hpsim_scenario_XXXXXX", base ? base : P_tmpdir);
    ck_assert_ptr_nonnull(mkdtemp(files_folder));
}

static inline const char *files_path(const char *name)
{
    static char path[2][512];
    static int next;
    next = !next;
    snprintf(path[next], sizeof path[next], "%s/%s", files_folder, name);
    return path[next];
}

static inline void files_teardown(void)
{
    DIR *folder = opendir(files_folder);
    ck_assert_ptr_nonnull(folder);
    for (struct dirent *entry; (entry = readdir(folder));) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) remove(files_path(entry->d_name));
    }
    closedir(folder);
    ck_assert_int_eq(rmdir(files_folder), 0);
}

static inline void files_write(const char *name, const void *bytes, size_t count)
{
    remove(files_path(name)); /* writing over a file makes some file systems wait for the disk */
    FILE *file = fopen(files_path(name), "wb");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(bytes, 1, count, file), count);
    ck_assert_int_eq(fclose(file), 0);
}

/* Loads the text as s.json with these options (NULL: none). */
static inline struct scenario *files_load_with(const char *text, const struct scenario_options *options, struct error *ret_error)
{
    *ret_error = (struct error){0};
    files_write("s.json", text, strlen(text));
    return scenario_load(files_path("s.json"), options, ret_error);
}

static inline void files_report(const char *what, const struct error *error)
{
    char text[2048];
    error_text(error, text, sizeof text);
    ck_abort_msg("%s: %s", what, text);
}

/* It loads; caller frees. */
static inline struct scenario *files_accept(const char *text, const struct scenario_options *options)
{
    struct error error;
    struct scenario *scenario = files_load_with(text, options, &error);
    if (!scenario) files_report(text, &error);
    return scenario;
}

/* It is refused as bad input with these words in the message (or hint) and this key path (NULL: any). */
static inline struct error files_refuse(const char *text, const struct scenario_options *options, const char *path, const char *words)
{
    struct error error;
    struct scenario *scenario = files_load_with(text, options, &error);
    ck_assert_msg(!scenario, "accepted: %s", text);
    if (error.kind != ERROR_INPUT || (path && strcmp(error.path, path) != 0)) files_report(text, &error);
    if (!strstr(error.message, words) && !strstr(error.hint, words)) files_report(words, &error);
    return error;
}

/* A file of the source's scenarios folder. The test program is given the source's root as its argument. */
static const char *files_source = ".";

static inline const char *files_shipped(const char *name)
{
    static char path[1024];
    snprintf(path, sizeof path, "%s/scenarios/%s", files_source, name);
    return path;
}

#endif
