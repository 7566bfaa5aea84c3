/* curve: reading, line by line; the first thing that is wrong ends it. */
#include "scenarios/curve.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "scenarios/input_file.h"
#include "scenarios/locale_c.h"
#include "scenarios/spelling.h"
#include "sim/arena.h"

enum { BYTES_MAX = 16 << 20, COLUMNS_MAX = 64, STEPS_MAX = 1000000 };
static const char forms[] = "allowed: step,loss[,grad_norm], or what hpsim run --csv writes";

struct csv { struct curve *curve; enum curve_side side; int step_column, column[CURVE_CHANNELS], columns, line; bool all_nan[CURVE_CHANNELS]; struct error *error; };

static bool fail(const struct csv *csv, int line)
{
    error_at(csv->error, csv->curve->file, line, 0, NULL);
    return false;
}

/* ---- fields ---- */

/* Without spaces and one pair of double quotes around it; in place. */
static char *trimmed(char *field)
{
    while (*field == ' ' || *field == '\t') field++;
    size_t length = strlen(field);
    while (length && (field[length - 1] == ' ' || field[length - 1] == '\t')) field[--length] = 0;
    if (length < 2 || field[0] != '"' || field[length - 1] != '"') return field;
    field[length - 1] = 0;
    return field + 1;
}

/* How many fields; those beyond COLUMNS_MAX are counted and left out. */
static int split(char *line, char *fields[COLUMNS_MAX])
{
    int count = 0;
    for (char *at = line; at;) {
        char *comma = strchr(at, ',');
        if (comma) *comma = 0;
        if (count < COLUMNS_MAX) fields[count] = trimmed(at);
        count++;
        at = comma ? comma + 1 : NULL;
    }
    return count;
}

static bool parse_step(struct csv *csv, const char *text, int64_t *ret_step)
{
    int64_t value = 0;
    bool good = *text != 0;
    for (const char *p = text; *p && good; p++) {
        good = *p >= '0' && *p <= '9' && value < INT64_C(100000000000000000);
        if (good) value = value * 10 + (*p - '0');
    }
    *ret_step = value;
    if (good) return true;
    char shown[FOREIGN_TEXT];
    error_input(csv->error, "step \"%s\" is not a whole number from 0 on", foreign(text, shown));
    error_hint(csv->error, "number the optimizer's steps 0, 1, 2, ... in the first column");
    return fail(csv, csv->line);
}

/* Digits behind the point (fewer where an exponent follows) and digits from the first that is not 0. */
static void count_digits(const char *text, int *ret_decimals, int *ret_significant)
{
    bool point = false;
    int decimals = 0, significant = 0;
    const char *p = text;
    for (; *p && *p != 'e' && *p != 'E'; p++) {
        if (*p == '.') point = true;
        if (*p < '0' || *p > '9') continue;
        if (point) decimals++;
        if (significant || *p != '0') significant++;
    }
    if (*p) decimals -= (int)strtol(p + 1, NULL, 10);
    *ret_decimals = decimals;
    *ret_significant = significant;
}

static const char *channel_word(enum curve_channel channel)
{
    return channel == CURVE_NORM ? "gradient norm" : "loss";
}

static bool parse_value(struct csv *csv, enum curve_channel channel, const char *text, double *ret_value)
{
    char *end = NULL, shown[FOREIGN_TEXT];
    double value = strtod(text, &end);
    if (end == text || *end) {
        error_input(csv->error, "%s \"%s\" is not a number", channel_word(channel), foreign(text, shown));
        if (strchr(text, ' ') || !*text) error_hint(csv->error, "every line needs a number in every column that the header names");
        else error_hint(csv->error, "numbers have a decimal point, no unit and no separator of thousands: 5.5141, 1e-3");
        return fail(csv, csv->line);
    }
    *ret_value = value;
    struct curve *curve = csv->curve;
    int decimals, significant;
    if (!isfinite(value)) return true; /* judged when the whole column is known */
    csv->all_nan[channel] = false;
    count_digits(text, &decimals, &significant);
    if (significant == 0) return true;
    if (decimals > curve->decimals[channel]) curve->decimals[channel] = decimals;
    if (significant > curve->significant[channel]) curve->significant[channel] = significant;
    return true;
}

/* ---- header ---- */

static int find(char *const *names, int count, const char *name)
{
    int found = -1;
    for (int i = 0; i < count; i++) {
        if (!strcmp(names[i], name)) found = found < 0 ? i : -2;
        if (found == -2) return -2;
    }
    return found;
}

static bool fail_header(struct csv *csv, const char *missing, char *const *names, int count)
{
    char shown[FOREIGN_TEXT], list[200];
    struct phrase phrase = {list, sizeof list, 0};
    for (int i = 0; i < count && i < 8; i++) phrase_add(&phrase, "%s%s", i ? "," : "", foreign(names[i], shown));
    error_input(csv->error, "there is no column %s; the header is \"%s\"; %s", missing, list, forms);
    if (count == 1 && strpbrk(names[0], ";\t")) error_hint(csv->error, "columns are separated by commas");
    else error_hint(csv->error, "the first line names the columns, such as: step,loss,grad_norm");
    return fail(csv, csv->line);
}

static bool read_header(struct csv *csv, char *line)
{
    static const char *const names[2][CURVE_CHANNELS] = {{"loss_logged", "loss_parallel", "grad_norm_parallel"},
                                                         {"loss_standalone", "loss_standalone", "grad_norm_standalone"}};
    static const char *const plain[CURVE_CHANNELS] = {"loss", NULL, "grad_norm"};
    char *fields[COLUMNS_MAX];
    csv->columns = split(line, fields);
    if (csv->columns > COLUMNS_MAX) {
        error_input(csv->error, "%d columns; at most %d are allowed", csv->columns, COLUMNS_MAX);
        return fail(csv, csv->line);
    }
    csv->step_column = find(fields, csv->columns, "step");
    if (csv->step_column == -1) return fail_header(csv, "step", fields, csv->columns);
    bool is_run = find(fields, csv->columns, names[csv->side][CURVE_BACKWARD]) != -1;
    bool doubled = csv->step_column == -2;
    for (int k = 0; k < CURVE_CHANNELS; k++) {
        const char *name = is_run ? names[csv->side][k] : plain[k];
        csv->column[k] = name ? find(fields, csv->columns, name) : -1;
        doubled = doubled || csv->column[k] == -2;
    }
    if (doubled) {
        error_input(csv->error, "the header names a column twice");
        error_hint(csv->error, "give each column its own name");
        return fail(csv, csv->line);
    }
    if (csv->column[CURVE_PRINTED] >= 0) return true;
    return fail_header(csv, is_run ? names[csv->side][CURVE_PRINTED] : "loss", fields, csv->columns);
}

/* ---- lines ---- */

static bool add_step(struct csv *csv, int64_t step)
{
    struct curve *curve = csv->curve;
    if (curve->count && step <= curve->step[curve->count - 1]) {
        error_input(csv->error, "step %lld comes after step %lld; steps ascend", (long long)step, (long long)curve->step[curve->count - 1]);
        error_hint(csv->error, "one line a step; of a run that was started anew, keep the lines of one attempt");
        return fail(csv, csv->line);
    }
    if (curve->count == STEPS_MAX) {
        error_input(csv->error, "more than %d steps", STEPS_MAX);
        error_hint(csv->error, "the first steps tell most: keep those");
        return fail(csv, csv->line);
    }
    if ((curve->count & (curve->count - 1)) == 0) { /* at each power of two */
        size_t room = curve->count ? 2 * (size_t)curve->count : 1;
        curve->step = memory_realloc(curve->step, room * sizeof *curve->step);
        curve->line = memory_realloc(curve->line, room * sizeof *curve->line);
        for (int k = 0; k < CURVE_CHANNELS; k++) curve->value[k] = memory_realloc(curve->value[k], room * sizeof(double));
    }
    curve->step[curve->count] = step;
    curve->line[curve->count] = csv->line;
    curve->count++;
    return true;
}

static bool read_line(struct csv *csv, char *line)
{
    char *fields[COLUMNS_MAX];
    int count = split(line, fields);
    int64_t step;
    if (count != csv->columns) {
        error_input(csv->error, "%d columns; the header has %d", count, csv->columns);
        error_hint(csv->error, "every line has as many columns as the header; a decimal comma counts as one more");
        return fail(csv, csv->line);
    }
    if (!parse_step(csv, fields[csv->step_column], &step) || !add_step(csv, step)) return false;
    for (int k = 0; k < CURVE_CHANNELS; k++) {
        double *value = &csv->curve->value[k][csv->curve->count - 1];
        *value = 0;
        if (csv->column[k] >= 0 && !parse_value(csv, (enum curve_channel)k, fields[csv->column[k]], value)) return false;
    }
    return true;
}

static bool read_lines(struct csv *csv, char *text, size_t bytes)
{
    if (strlen(text) != bytes) {
        error_input(csv->error, "there is a byte 0 in the file");
        error_hint(csv->error, "save it as plain text in UTF-8");
        return fail(csv, 0);
    }
    if (!strncmp(text, "\xef\xbb\xbf", 3)) text += 3;
    bool header = false, blank = false;
    for (char *at = text; at && *at;) {
        char *end = strchr(at, '\n'), *line = at;
        at = end ? end + 1 : NULL;
        if (end) *end = 0;
        csv->line++;
        size_t length = strlen(line);
        if (length && line[length - 1] == '\r') line[--length] = 0;
        if (strchr(line, '\r')) {
            error_input(csv->error, "a carriage return stands inside the line");
            error_hint(csv->error, "lines end in LF, or in CR and LF; tr '\\r' '\\n' <OLD >NEW turns CR into LF");
            return fail(csv, csv->line);
        }
        bool is_blank = line[strspn(line, " \t")] == 0;
        if (!is_blank && blank) {
            error_input(csv->error, "the line before is empty");
            error_hint(csv->error, "take out empty lines; they are allowed at the end only");
            return fail(csv, csv->line);
        }
        blank = is_blank;
        if (is_blank) continue;
        if (!header && !read_header(csv, line)) return false;
        if (header && !read_line(csv, line)) return false;
        header = true;
    }
    if (!header || csv->curve->count == 0) {
        error_input(csv->error, header ? "there is a header and no step" : "there is no header and no step");
        error_hint(csv->error, "%s; one line a step, from the first on", forms);
        return fail(csv, header ? csv->line : 0);
    }
    return true;
}

/* A column that is not there, or says in every line that there is nothing, goes; else every number is finite. */
static bool judge_columns(struct csv *csv)
{
    struct curve *curve = csv->curve;
    for (int k = 0; k < CURVE_CHANNELS; k++) {
        if (csv->column[k] < 0 || (k == CURVE_NORM && csv->all_nan[k])) {
            free(curve->value[k]);
            curve->value[k] = NULL;
            continue;
        }
        for (int i = 0; i < curve->count; i++) {
            if (isfinite(curve->value[k][i])) continue;
            error_input(csv->error, "the %s of step %lld is not finite", channel_word((enum curve_channel)k), (long long)curve->step[i]);
            if (i > 0) error_hint(csv->error, "end both curves with the line before: what comes before is compared");
            else error_hint(csv->error, "nothing can be compared with that; hpsim faults lists what makes it so at once");
            return fail(csv, curve->line[i]);
        }
    }
    return true;
}

bool curve_read(const char *path, enum curve_side side, struct curve *ret_curve, struct error *error)
{
    *ret_curve = (struct curve){0};
    for (int k = 0; k < CURVE_CHANNELS; k++) ret_curve->decimals[k] = -400;
    if (strlen(path) >= sizeof ret_curve->file) return error_input(error, "the path of the curve is longer than %zu bytes", sizeof ret_curve->file - 1);
    strcpy(ret_curve->file, path);
    struct csv csv = {.curve = ret_curve, .side = side, .all_nan = {true, true, true}, .error = error};
    size_t bytes = 0;
    char *text = input_file_read(path, BYTES_MAX, "the curve ", &bytes, error);
    if (!text) {
        error_hint(error, "%s", forms);
        return fail(&csv, 0);
    }
    struct locale_c locale = locale_c_enter();
    bool good = read_lines(&csv, text, bytes) && judge_columns(&csv);
    locale_c_leave(locale);
    free(text);
    return good;
}

void curve_done(struct curve *curve)
{
    free(curve->step);
    free(curve->line);
    for (int k = 0; k < CURVE_CHANNELS; k++) free(curve->value[k]);
    *curve = (struct curve){0};
}

bool curves_match(const struct curve *parallel, const struct curve *standalone, struct error *error)
{
    int least = parallel->count < standalone->count ? parallel->count : standalone->count;
    for (int i = 0; i < least; i++) {
        if (parallel->step[i] == standalone->step[i]) continue;
        error_input(error, "step %lld here is step %lld in %s, line %d", (long long)parallel->step[i],
                    (long long)standalone->step[i], standalone->file, standalone->line[i]);
        error_hint(error, "both curves need the same steps: keep the lines whose step both have");
        error_at(error, parallel->file, parallel->line[i], 0, NULL);
        return false;
    }
    if (parallel->count == standalone->count) return true;
    const struct curve *longer = parallel->count > least ? parallel : standalone, *other = longer == parallel ? standalone : parallel;
    error_input(error, "%d steps, and %s has %d", longer->count, other->file, other->count);
    error_hint(error, "both curves need the same steps: end this one with line %d", longer->line[least - 1]);
    error_at(error, longer->file, longer->line[least], 0, NULL);
    return false;
}

double curve_resolution(const struct curve *curve, enum curve_channel channel, int i)
{
    double value = fabs(curve->value[channel][i]);
    double place = pow(10, -curve->decimals[channel]);
    if (value > 0) place = fmax(place, pow(10, floor(log10(value)) + 1 - curve->significant[channel]));
    return place / 2;
}
