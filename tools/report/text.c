/* text: the report of `hpsim run`: what ran, the steps side by side, the checks, the verdict, and where
 * the runs differ the place and the way on. */
#include <math.h>
#include <string.h>
#include "scenarios/check.h"
#include "scenarios/spelling.h"
#include "tools/report/describe.h"
#include "tools/report/number.h"
#include "tools/report/report.h"
#include "tools/report/table.h"

enum { STEPS_SHOWN = 5, FAILED_SHOWN = 6, EVIDENCE_SHOWN = 4, LABEL = 13, CHECK_LABEL = 27 };

static void print_header(const struct report *report, const struct terminal *t)
{
    const struct scenario *scenario = report->result->scenario;
    char text[DESCRIBE_TEXT], name[FOREIGN_TEXT];
    terminal_print(t, STYLE_BOLD, "%s", foreign(scenario->name, name));
    fprintf(t->file, "  %s\n", describe_layout(&scenario->config, text));
    for (int i = 0; i < scenario->faults_count; i++) {
        const struct fault_entry *entry = &scenario->faults[i];
        char line[2 * DESCRIBE_TEXT], given[DESCRIBE_TEXT];
        snprintf(line, sizeof line, "%s%s: %s", entry->name, describe_fault(entry, given),
                 entry->fault ? entry->fault->injected : entry->deviation->what);
        terminal_paragraph(t, 0, "fault", 7, STYLE_WARN, line);
    }
    fputc('\n', t->file);
}

/* A difference that rounding explains is plain; colour starts where somebody would have to look. */
static enum style error_style(double rel_err)
{
    return isnan(rel_err) || rel_err > 1e-3 ? STYLE_BAD : rel_err > 1e-5 ? STYLE_WARN : STYLE_PLAIN;
}

static void print_steps(const struct report *report, const struct terminal *t)
{
    static const char *const titles[] = {"step", "loss parallel", "logged", "standalone", "rel. diff.",
                                         "grad norm parallel", "standalone", "rel. diff.", "valid tokens"};
    const struct result *result = report->result;
    if (result->steps_count == 0) return;
    struct table *table = table_new(9, titles, "rrrrrrrrr");
    int hidden = report->verbose ? 0 : result->steps_count - 2 * STEPS_SHOWN;
    for (int i = 0; i < result->steps_count; i++) {
        const struct step_result *s = &result->steps[i];
        char number[NUMBER_TEXT];
        if (hidden > 1 && i == STEPS_SHOWN) {
            char gap[64];
            snprintf(gap, sizeof gap, "... %d more; --verbose shows them ...", hidden);
            table_gap(table, gap);
            i += hidden - 1;
            continue;
        }
        bool logged_wrong = s->logged != s->parallel && !(fabs(s->logged - s->parallel) <= 1e-5 * fabs(s->parallel));
        table_add(table, STYLE_PLAIN, "%d", s->step);
        table_add(table, STYLE_PLAIN, "%s", number_value(s->parallel, number));
        table_add(table, logged_wrong ? STYLE_WARN : STYLE_PLAIN, "%s", number_value(s->logged, number));
        table_add(table, STYLE_PLAIN, "%s", number_value(s->standalone, number));
        table_add(table, error_style(s->rel_err), "%s", number_error(s->rel_err, number));
        table_add(table, STYLE_PLAIN, "%s", number_value(s->norm_parallel, number));
        table_add(table, STYLE_PLAIN, "%s", number_value(s->norm_standalone, number));
        table_add(table, error_style(s->norm_rel_err), "%s", number_error(s->norm_rel_err, number));
        table_add(table, STYLE_PLAIN, "%s", number_count(s->valid_tokens, number));
    }
    table_print(table, t, 2);
    table_free(table);
    fputc('\n', t->file);
}

/* What of its place the sentence does not say itself. */
static const char *untold_place(const struct check_result *check, char text[DESCRIBE_TEXT])
{
    struct place place = check->place;
    int *numbers[] = {&place.rank, &place.step, &place.microbatch, &place.layer, &place.unit};
    static const char *const words[] = {"rank", "step", "micro-batch", "layer", "unit"};
    for (int i = 0; i < 5; i++) {
        char piece[40];
        snprintf(piece, sizeof piece, "%s %d", words[i], *numbers[i]);
        if (strstr(check->why, piece)) *numbers[i] = -1;
    }
    if (place.param && strstr(check->why, place.param)) place.param = NULL;
    if (place.layer < 0) place.unit = -1;
    return describe_place(&place, text);
}

/* The value is the farthest beyond its limit of all that the check has measured, not that of the finding whose sentence is
 * shown. */
static const char *measure_of(const struct check_result *result)
{
    const struct check *check = check_find_by_id(result->id);
    return check && check->measures ? check->measures : "relative error";
}

static void print_failed_check(const struct check_result *check, const struct terminal *t)
{
    char line[1200], label[64], place[DESCRIBE_TEXT], value[NUMBER_TEXT], limit[NUMBER_TEXT];
    untold_place(check, place);
    int used = snprintf(line, sizeof line, "%s%s%s", place, place[0] ? ": " : "", check->why);
    if (check->limit > 0) { /* 0: exact, any difference is a finding and its size says nothing */
        used += snprintf(line + used, sizeof line - (size_t)used, " (worst of all: %s %s, allowed %s)", measure_of(check),
                         number_error(check->value, value), number_error(check->limit, limit));
    }
    if (check->findings > 1)
        snprintf(line + used, sizeof line - (size_t)used, "; %d more finding%s", check->findings - 1,
                 check->findings > 2 ? "s" : "");
    snprintf(label, sizeof label, "FAIL  %s", check->id);
    terminal_paragraph(t, 2, label, CHECK_LABEL, STYLE_BAD, line);
}

static void print_check_names(const struct result *result, const struct terminal *t, enum check_status status,
                              const char *label, enum style style)
{
    char line[2048] = "";
    size_t used = 0;
    for (int i = 0; i < result->checks_count; i++) {
        if (result->checks[i].status != status || used >= sizeof line) continue;
        used += (size_t)snprintf(line + used, sizeof line - used, "%s%s", used ? ", " : "", result->checks[i].id);
    }
    if (used) terminal_paragraph(t, 2, label, 6, style, line);
}

/* The pair of runs at the other rung of the ladder decides what is rounding; a reader of bf16's numbers must know. */
static void print_judged(const struct result *result, const struct terminal *t)
{
    if (!result->parallel_other) return;
    char line[2 * DESCRIBE_TEXT], formats[DESCRIBE_TEXT];
    const struct precision *own = &result->parallel->config.precision;
    if (result->context.fine) {
        snprintf(line, sizeof line, "the numbers above are the run's own, in %s, against a reference in fp64; the same attention in fp64 must agree with it to 1e-12, where no rounding hides a mistake",
                 describe_precision(own, formats));
    } else if (precision_is(own, FORMAT_FP64)) {
        snprintf(line, sizeof line,
                 "the run's own format; the same two runs in fp32 say which differences shrink with the precision, as rounding does");
    } else {
        snprintf(line, sizeof line,
                 "what differs in these two runs may be rounding (%s) or a mistake, so both were made again in fp64, where "
                 "rounding shrinks and a mistake does not. The table shows the runs as they are; a relative error that rounding "
                 "could explain is that of the runs in fp64",
                 describe_precision(own, formats));
    }
    terminal_paragraph(t, 0, "judged in fp64:", 16, STYLE_BOLD, line);
    fputc('\n', t->file);
}

static void print_checks(const struct report *report, const struct terminal *t)
{
    const struct result *result = report->result;
    terminal_print(t, STYLE_DIM, "checks\n");
    int failed = 0;
    for (int i = 0; i < result->checks_count; i++) {
        if (result->checks[i].status != CHECK_FAIL) continue;
        if (report->verbose || failed < FAILED_SHOWN) print_failed_check(&result->checks[i], t);
        failed++;
    }
    if (!report->verbose && failed > FAILED_SHOWN) {
        fprintf(t->file, "  and %d more failed; --verbose shows them\n", failed - FAILED_SHOWN);
    }
    print_check_names(result, t, CHECK_PASS, "pass", STYLE_GOOD);
    if (!report->verbose) print_check_names(result, t, CHECK_SKIP, "skip", STYLE_DIM);
    for (int i = 0; report->verbose && i < result->checks_count; i++) {
        const struct check_result *c = &result->checks[i];
        char label[64];
        if (c->status != CHECK_SKIP) continue;
        snprintf(label, sizeof label, "skip  %s", c->id);
        terminal_paragraph(t, 2, label, CHECK_LABEL, STYLE_DIM, c->why);
    }
    fputc('\n', t->file);
}

static void print_warnings(const struct result *result, const struct terminal *t)
{
    for (int i = 0; i < result->warnings_count; i++) terminal_paragraph(t, 0, "warning:", 9, STYLE_WARN, result->warnings[i]);
    if (result->warnings_count) fputc('\n', t->file);
}

/* Masked and not hit say why; an active fault is worth a line only where everything is told. */
static void print_faults(const struct report *report, const struct terminal *t)
{
    static const char *const outcomes[] = {"active", "masked", "not hit"};
    const struct result *result = report->result;
    bool any = false;
    for (int i = 0; i < result->faults_count; i++) {
        const struct fault_result *f = &result->faults[i];
        if (f->outcome == FAULT_ACTIVE && !report->verbose) continue;
        char line[600], name[2 * DESCRIBE_TEXT], given[DESCRIBE_TEXT];
        snprintf(name, sizeof name, "%s%s", f->fault, describe_fault(&result->scenario->faults[i], given));
        if (f->outcome == FAULT_NOT_HIT) snprintf(line, sizeof line, "%s: %s", outcomes[f->outcome], f->why);
        else
            snprintf(line, sizeof line, "%s: %s was passed %llu times where it applies%s%s", outcomes[f->outcome],
                     f->site ? f->site : "its site", (unsigned long long)f->hits, f->why[0] ? "; " : "", f->why);
        int width = strlen(name) < 26 ? 26 : strlen(name) > 48 ? 26 : (int)strlen(name) + 1;
        terminal_paragraph(t, 2, name, width, f->outcome == FAULT_NOT_HIT ? STYLE_BAD : STYLE_WARN, line);
        any = true;
    }
    if (any) fputc('\n', t->file);
}

static void print_verdict(const struct report *report, const struct terminal *t)
{
    static const char *const loud[] = {"CONSISTENT", "DIVERGED", "VIOLATED", "DEADLOCK"};
    const struct result *result = report->result;
    bool good = report_exit_status(result) == 0;
    char expected[DESCRIBE_TEXT], name[FOREIGN_TEXT];
    terminal_print(t, good && result->verdict == VERDICT_CONSISTENT ? STYLE_GOOD : STYLE_BAD, "%s",
                   loud[result->verdict]);
    if (result->has_diagnosis && result->diagnosis.component[0]) {
        fprintf(t->file, " in ");
        terminal_print(t, STYLE_BOLD, "%s", result->diagnosis.component);
    }
    if (report->quiet) fprintf(t->file, "  %s", foreign(result->scenario->name, name));
    if (good) {
        terminal_print(t, STYLE_GOOD, ", as expected\n");
        return;
    }
    terminal_print(t, STYLE_BAD, ", not as expected");
    if (result->expected_why[0]) fprintf(t->file, ": %s\n", result->expected_why);
    else if (result->as_expected) fprintf(t->file, ": a fault was never hit\n");
    else fprintf(t->file, ": expected %s\n", describe_expectation(&result->scenario->expect, expected));
}

/* What the place was computed from, and what came out: relative differences of the parallel run from the standalone one. */
static void print_evidence(const struct diagnosis *d, bool verbose, const struct terminal *t)
{
    bool first = true;
    for (int i = 0; i < d->evidence_count && (verbose || i < EVIDENCE_SHOWN); i++) {
        const struct evidence_item *e = &d->evidence[i];
        char line[2 * DESCRIBE_TEXT], inputs[NUMBER_TEXT], differs[NUMBER_TEXT];
        if (isnan(e->inputs_agree_to) && isnan(e->differs_by)) continue; /* a deadlock has no numbers */
        if (first) terminal_paragraph(t, 2, "evidence", LABEL, STYLE_DIM, "relative differences from what is due, in the order of the dataflow");
        first = false;
        bool follows = e->inputs_agree_to > 0.1 * e->differs_by, equal = e->inputs_agree_to == 0, known = !isnan(e->inputs_agree_to);
        struct phrase phrase = {line, sizeof line, 0};
        phrase_add(&phrase, "%s: ", e->tensor);
        if (known) phrase_add(&phrase, "%s%s, ", follows ? "inputs differ by " : equal ? "inputs equal" : "inputs agree to ",
                              equal && !follows ? "" : number_error(e->inputs_agree_to, inputs));
        if (isnan(e->differs_by)) phrase_add(&phrase, "it is not what is due"); /* no number, but a choice or an order */
        else phrase_add(&phrase, "it %s by %s", follows ? "too" : "differs", number_error(e->differs_by, differs));
        if (e->ratio[0]) phrase_add(&phrase, ", got/due = %s", e->ratio);
        terminal_paragraph(t, 2, "", LABEL, STYLE_DIM, line);
    }
}

static void print_candidates(const struct diagnosis *d, const struct terminal *t)
{
    char line[2 * DESCRIBE_TEXT] = "";
    struct phrase phrase = {line, sizeof line, 0};
    for (int i = 0; i < d->candidates_count; i++) {
        char score[NUMBER_TEXT];
        phrase_add(&phrase, "%s%s %s", i ? ", " : "faults of the catalogue that look like this, 1 the most: ", d->candidates[i].fault,
                   number_error(d->candidates[i].score, score));
    }
    if (d->candidates_count) terminal_paragraph(t, 2, "candidates", LABEL, STYLE_DIM, line);
}

static void print_diagnosis(const struct report *report, const struct terminal *t)
{
    const struct result *result = report->result;
    if (!result->has_diagnosis) return;
    const struct diagnosis *d = &result->diagnosis;
    char text[DESCRIBE_TEXT], place[DESCRIBE_TEXT], line[2 * DESCRIBE_TEXT];
    terminal_paragraph(t, 2, "what", LABEL, STYLE_DIM, d->summary);
    struct place first = d->place;
    first.rank = -1;
    describe_place(&first, place);
    const char *ranks = describe_ranks(d->ranks, d->ranks_count, text);
    snprintf(line, sizeof line, "%s%s%s%s%s", d->site ? d->site : d->component,
             d->ranks_count == 0 ? "" : d->ranks_count == 1 ? ", rank " : ", ranks ", ranks,
             place[0] ? "; first: " : "", place);
    terminal_paragraph(t, 2, "where", LABEL, STYLE_DIM, line);
    print_evidence(d, report->verbose, t);
    print_candidates(d, t);
    if (d->next[0]) terminal_paragraph(t, 2, "next", LABEL, STYLE_DIM, d->next);
    fputc('\n', t->file);
}

static void print_footer(const struct report *report, const struct terminal *t)
{
    const struct result *result = report->result;
    char wall[NUMBER_TEXT], parallel[NUMBER_TEXT], standalone[NUMBER_TEXT];
    int threads = report->options->train.threads;
    terminal_print(t, STYLE_DIM, "%s (parallel %s, standalone %s), %d thread%s, %s, gemm %s\n",
                   number_seconds(result->wall_s, wall), number_seconds(result->parallel->wall_s, parallel),
                   number_seconds(result->standalone ? result->standalone->wall_s : 0, standalone), threads,
                   threads == 1 ? "" : "s", result->parallel->cpu_path ? result->parallel->cpu_path : "?",
                   result->parallel->gemm ? result->parallel->gemm : "?");
}

void report_text(const struct report *report, const struct terminal *terminal)
{
    if (report->quiet) {
        print_verdict(report, terminal);
        return;
    }
    print_header(report, terminal);
    print_steps(report, terminal);
    if (report->result->denoise.iterations > 0) report_denoise_text(report, terminal);
    if (report->result->context.comparison) report_context_text(report, terminal);
    if (report->verbose) report_text_details(report, terminal);
    print_judged(report->result, terminal);
    print_checks(report, terminal);
    print_faults(report, terminal);
    print_warnings(report->result, terminal);
    print_verdict(report, terminal);
    if (report->result->verdict == VERDICT_DEADLOCK) report_text_deadlock(report->result, terminal);
    print_diagnosis(report, terminal);
    print_footer(report, terminal);
}

int report_exit_status(const struct result *result)
{
    if (!result->as_expected) return 1;
    for (int i = 0; i < result->faults_count; i++) {
        if (result->faults[i].outcome == FAULT_NOT_HIT) return 1;
    }
    return 0;
}
