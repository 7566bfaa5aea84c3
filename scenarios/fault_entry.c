/* fault_entry: names to registry entries, and the deviation's argument. */
#include "scenarios/fault_entry.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/deviations.h"
#include "scenarios/overrides.h"
#include "scenarios/spelling.h"
#include "sim/arena.h"

enum { PATH_TEXT = 256 };
struct entry { struct reader *reader; const cJSON *item; const char *path; struct fault_draft draft; };

static const char *path_of(const struct entry *e, const char *name, char text[PATH_TEXT])
{
    snprintf(text, PATH_TEXT, "%.180s%s%s", e->path, *e->path && *name ? "." : "", name);
    return text;
}

/* ---- names ---- */

static bool fail_fault_name(struct entry *e, const char *name)
{
    char path[PATH_TEXT], shown[FOREIGN_TEXT];
    const char **names = memory_alloc((size_t)fault_count() * sizeof *names);
    for (int i = 0; i < fault_count(); i++) names[i] = fault_at(i)->name;
    const char *near = spelling_nearest(name, names, fault_count());
    path_of(e, "fault", path);
    foreign(name, shown);
    if (site_registry_find(name)) {
        reader_fail(e->reader, path, "'%s' is a site; a deviation is missing", shown);
        error_hint(e->reader->error, "write %s:DEVIATION; hpsim sites %s lists what it can do wrong", shown, shown);
    } else if (near) {
        reader_fail(e->reader, path, "unknown fault '%s'; did you mean '%s'?", shown, near);
    } else {
        reader_fail(e->reader, path, "unknown fault '%s'", shown);
    }
    error_hint(e->reader->error, "hpsim faults lists them; site:deviation is possible too");
    free(names);
    return false;
}

static const struct site *find_site(struct entry *e, const char *name, const char *key)
{
    const struct site *site = site_registry_find(name);
    if (site) return site;
    char path[PATH_TEXT], shown[FOREIGN_TEXT];
    const char **names = memory_alloc((size_t)site_registry_count() * sizeof *names);
    for (int i = 0; i < site_registry_count(); i++) names[i] = site_registry_at(i)->name;
    const char *near = spelling_nearest(name, names, site_registry_count());
    path_of(e, key, path);
    foreign(name, shown);
    if (near) reader_fail(e->reader, path, "unknown site '%s'; did you mean '%s'?", shown, near);
    else reader_fail(e->reader, path, "unknown site '%s'", shown);
    error_hint(e->reader->error, "hpsim sites lists them");
    free(names);
    return NULL;
}

static void add_facets(unsigned facets, struct phrase *phrase)
{
    static const char *const names[] = {"reduces", "rooted", "point-to-point", "asynchronous", "guarded",
                                        "compares-index", "merges", "differentiable", "logarithmic", "axes", "blocks", "mode"};
    bool first = true;
    for (int i = 0; i < (int)(sizeof names / sizeof names[0]); i++) {
        if (!(facets >> i & 1)) continue;
        phrase_add(phrase, "%s%s", first ? "" : ", ", names[i]);
        first = false;
    }
    if (first) phrase_add(phrase, "none");
}

static void hint_applicable(struct entry *e, const struct site *site)
{
    char hint[400];
    struct phrase phrase = {hint, sizeof hint, 0};
    phrase_add(&phrase, "%s can do wrong:", site->name);
    for (int i = 0; i < deviation_registry_count(); i++) {
        if (deviation_applies(deviation_registry_at(i), site))
            phrase_add(&phrase, " %s", deviation_registry_at(i)->name);
    }
    error_hint(e->reader->error, "%s", hint);
}

static bool fail_deviation_name(struct entry *e, const struct site *site, const char *name, const char *path)
{
    const char **names = memory_alloc((size_t)deviation_registry_count() * sizeof *names);
    const struct deviation *other = NULL;
    char shown[FOREIGN_TEXT];
    int count = 0;
    foreign(name, shown);
    for (int i = 0; i < deviation_registry_count(); i++) {
        const struct deviation *deviation = deviation_registry_at(i);
        if (!strcmp(deviation->name, name)) other = deviation;
        if (deviation_applies(deviation, site)) names[count++] = deviation->name;
    }
    const char *near = spelling_nearest(name, names, count), *kind = site_kind_names[site->kind];
    if (other) {
        reader_fail(e->reader, path, "'%s' is for sites of kind %s; '%s' is of kind %s", shown,
                    site_kind_names[other->kind], site->name, kind);
    } else if (near) {
        reader_fail(e->reader, path, "unknown deviation '%s'; did you mean '%s'?", shown, near);
    } else {
        reader_fail(e->reader, path, "unknown deviation '%s'", shown);
    }
    free(names);
    hint_applicable(e, site);
    return false;
}

static bool find_deviation(struct entry *e, const char *name, const char *key)
{
    const struct site *site = e->draft.entry.site;
    const struct deviation *deviation = deviation_registry_find(name, site->kind);
    char path[PATH_TEXT], missing[96] = "", has[160] = "";
    path_of(e, key, path);
    if (!deviation) return fail_deviation_name(e, site, name, path);
    if (!deviation_applies(deviation, site)) {
        struct phrase missing_phrase = {missing, sizeof missing, 0}, has_phrase = {has, sizeof has, 0};
        add_facets(deviation->needs & ~site->facets, &missing_phrase);
        add_facets(site->facets, &has_phrase);
        reader_fail(e->reader, path, "'%s' does not apply to '%s': it needs the facet %s; the site has: %s", name,
                    site->name, missing, has);
        hint_applicable(e, site);
        return false;
    }
    e->draft.entry.deviation = deviation;
    snprintf(e->draft.entry.name, sizeof e->draft.entry.name, "%.40s:%.22s", site->name, deviation->name);
    return true;
}

static bool resolve_names(struct entry *e)
{
    struct fault_draft *d = &e->draft;
    char path[PATH_TEXT], *colon = strchr(d->fault, ':');
    if (d->fault[0] && (d->site[0] || d->deviation[0])) {
        return reader_fail(e->reader, path_of(e, "fault", path),
                           "'fault' and 'site' are both given; one of them is allowed");
    }
    if (colon) {
        *colon = 0;
        d->entry.site = find_site(e, d->fault, "fault");
        return d->entry.site && find_deviation(e, colon + 1, "fault");
    }
    if (d->fault[0]) {
        d->entry.fault = fault_find(d->fault);
        snprintf(d->entry.name, sizeof d->entry.name, "%s", d->fault);
        return d->entry.fault || fail_fault_name(e, d->fault);
    }
    if (!d->site[0] || !d->deviation[0]) {
        return reader_fail(e->reader, path_of(e, "", path),
                           "'%s' is missing; allowed: 'fault' alone, or 'site' and 'do'",
                           d->site[0]        ? "do"
                           : d->deviation[0] ? "site"
                                             : "fault");
    }
    d->entry.site = find_site(e, d->site, "site");
    return d->entry.site && find_deviation(e, d->deviation, "do");
}

/* ---- the argument ---- */

static const struct { enum fault_parameter bit; const char *name; } parameters[] = {
    {PARAMETER_FACTOR, "factor"}, {PARAMETER_VALUE, "value"}, {PARAMETER_GROUP, "group"},
    {PARAMETER_OP, "op"}, {PARAMETER_FORMAT, "format"}, {PARAMETER_INDEX, "index"},
};
enum { PARAMETERS = sizeof parameters / sizeof parameters[0] };

/* What each deviation takes, and what holds where it is left out; NULL: it can't be left out. */
static const struct argument { enum site_kind kind; const char *name; unsigned takes; const char *fallback; } arguments[] = {
    {SITE_FACTOR, "times", PARAMETER_FACTOR | PARAMETER_VALUE, "2"},
    {SITE_FACTOR, "set", PARAMETER_FACTOR | PARAMETER_VALUE, "2"},
    {SITE_FACTOR, "per-accumulation-step", PARAMETER_FACTOR | PARAMETER_VALUE, "1/M"},
    {SITE_COMMUNICATION, "scale", PARAMETER_FACTOR | PARAMETER_VALUE, "2"},
    {SITE_COMMUNICATION, "premultiply", PARAMETER_VALUE, "0"},
    {SITE_COMMUNICATION, "wrong-group", PARAMETER_GROUP, "world"},
    {SITE_COMMUNICATION, "wrong-op", PARAMETER_OP, "avg for a sum, else sum"},
    {SITE_COMMUNICATION, "wrong-format", PARAMETER_FORMAT, NULL},
    {SITE_COMMUNICATION, "round-hops", PARAMETER_FORMAT, "bf16"},
    {SITE_COMMUNICATION, "wrong-peer", PARAMETER_INDEX, "the next member"},
    {SITE_COMMUNICATION, "wrong-root", PARAMETER_INDEX, "the next member"},
    {SITE_COMMUNICATION, "drop-peer", PARAMETER_INDEX, "the last member"},
    {SITE_COMMUNICATION, "lose-link", PARAMETER_INDEX, "the member before"},
    {SITE_COMMUNICATION, "corrupt", PARAMETER_INDEX, "element 0"},
    {SITE_TENSOR, "shift", PARAMETER_VALUE, "1"},
    {SITE_TENSOR, "perturb", PARAMETER_VALUE, "0.01"},
    {SITE_TENSOR, "bit-flip", PARAMETER_VALUE, "3"},
    {SITE_TENSOR, "round", PARAMETER_FORMAT, "bf16"},
    {SITE_MEMORY, "lose-range", PARAMETER_VALUE, "1"},
    {SITE_MEMORY, "wrong-range", PARAMETER_VALUE, "1"},
};

static const struct argument *argument_of(const struct deviation *deviation)
{
    for (size_t i = 0; i < sizeof arguments / sizeof arguments[0]; i++) {
        if (arguments[i].kind == deviation->kind && !strcmp(arguments[i].name, deviation->name)) return &arguments[i];
    }
    return NULL;
}

unsigned fault_parameters(const struct deviation *deviation)
{
    const struct argument *argument = argument_of(deviation);
    return argument ? argument->takes : 0;
}

const char *fault_argument_words(const struct deviation *deviation, char text[FAULT_ARGUMENT_TEXT])
{
    const struct argument *argument = argument_of(deviation);
    struct phrase phrase = {text, FAULT_ARGUMENT_TEXT, 0};
    text[0] = 0;
    for (int i = 0; argument && i < PARAMETERS; i++) {
        if (argument->takes & parameters[i].bit)
            phrase_add(&phrase, "%s%s", phrase.used ? " or " : "", parameters[i].name);
    }
    if (argument && argument->fallback) phrase_add(&phrase, " (%s)", argument->fallback);
    else if (argument) phrase_add(&phrase, ", required");
    return text;
}

struct factor_numbers fault_numbers(const struct layout *layout, double of_data)
{
    double data_ranks = layout_data_ranks(layout);
    return (struct factor_numbers){
        .M = layout->microbatches, .D = data_ranks, .P = layout->pp, .C = layout_cp(layout), .T = layout->tp, .E = layout_ep(layout),
        .A = layout->reduce_op == FSDP_REDUCE_AVG ? data_ranks : 1,
        .N = of_data, .N_all = of_data, .N_unshifted = of_data, .n = of_data, .n_rank = of_data,
        .n_rank_unshifted = of_data, .D_shard = layout->dp_shard, .D_replicate = layout->dp_replicate,
    };
}

static unsigned takes_of(const struct fault_entry *entry)
{
    unsigned takes = 0;
    if (!entry->fault) return fault_parameters(entry->deviation);
    for (int i = 0; i < entry->fault->parts_count; i++) {
        const struct fault_part *part = &entry->fault->parts[i];
        const struct site *site = site_registry_find(part->site);
        const struct deviation *deviation = site ? deviation_registry_find(part->deviation, site->kind) : NULL;
        if (deviation) takes |= fault_parameters(deviation);
    }
    return takes;
}

static bool fail_parameter(struct entry *e, const char *name, unsigned takes)
{
    char path[PATH_TEXT], list[96] = "";
    struct phrase phrase = {list, sizeof list, 0};
    for (int i = 0; i < PARAMETERS; i++) {
        if (takes & parameters[i].bit) phrase_add(&phrase, "%s'%s'", phrase.used ? ", " : "", parameters[i].name);
    }
    return reader_fail(e->reader, path_of(e, name, path), "'%s' takes no '%s'; allowed: %s", e->draft.entry.name, name,
                       takes ? list : "nothing");
}

/* An expression must be one and give a finite number; a message can only be scaled by what the layout tells. */
static bool check_expression(struct entry *e)
{
    struct layout any = {.pp = 2, .dp_replicate = 1, .dp_shard = 2, .tp = 1, .microbatches = 2};
    bool communication = e->draft.entry.deviation && e->draft.entry.deviation->kind == SITE_COMMUNICATION;
    struct factor_numbers numbers = fault_numbers(&any, communication ? NAN : 2);
    struct error error = {0};
    double value = 0;
    char path[PATH_TEXT];
    path_of(e, "factor", path);
    if (!factor_parse(e->draft.entry.text, &numbers, &value, &error))
        return reader_fail(e->reader, path, "%s", error.message);
    if (isnan(value) && communication) {
        return reader_fail(
            e->reader, path,
            "'%s' reads the data's counts; at a communication site M, D, P, C, T, E, A and numbers are allowed",
            e->draft.entry.text);
    }
    return isfinite(value) || reader_fail(e->reader, path, "'%s' is not a finite number", e->draft.entry.text);
}

static bool resolve_factor(struct entry *e, const cJSON *factor)
{
    struct fault_entry *entry = &e->draft.entry;
    if (cJSON_IsNumber(factor)) {
        entry->value = factor->valuedouble;
        entry->has_value = true;
        return true;
    }
    snprintf(entry->text, sizeof entry->text, "%s", factor->valuestring);
    return check_expression(e);
}

/* Without its format the deviation would do nothing at all, and say so nowhere. */
static bool fail_no_format(struct entry *e)
{
    char path[PATH_TEXT], allowed[160];
    key_allowed(key_find("faults[].format"), allowed, sizeof allowed);
    reader_fail(e->reader, path_of(e, "", path), "'%s' needs 'format'; allowed: %s", e->draft.entry.name, allowed);
    error_hint(e->reader->error, "write --fault %s@format=bf16, in a file \"format\": \"bf16\" beside it", e->draft.entry.name);
    return false;
}

static bool resolve_parameters(struct entry *e)
{
    struct fault_draft *d = &e->draft;
    unsigned takes = takes_of(&d->entry);
    char path[PATH_TEXT];
    for (int i = 0; i < PARAMETERS; i++) {
        bool given = cJSON_GetObjectItemCaseSensitive(e->item, parameters[i].name) != NULL;
        if (given && !(takes & parameters[i].bit)) return fail_parameter(e, parameters[i].name, takes);
    }
    const cJSON *factor = cJSON_GetObjectItemCaseSensitive(e->item, "factor");
    d->entry.has_value = cJSON_GetObjectItemCaseSensitive(e->item, "value") != NULL;
    if (factor && d->entry.has_value)
        return reader_fail(e->reader, path_of(e, "value", path),
                           "'factor' and 'value' are both given; one of them is allowed");
    if (factor && !resolve_factor(e, factor)) return false;
    bool shift =
        d->entry.deviation && d->entry.deviation->kind == SITE_TENSOR && !strcmp(d->entry.deviation->name, "shift");
    if (shift && d->entry.has_value && (fabs(d->entry.value) > 1e9 || floor(d->entry.value) != d->entry.value)) {
        return reader_fail(e->reader, path_of(e, "value", path),
                           "%.15g found; allowed: an integer from -1000000000 to 1000000000", d->entry.value);
    }
    const struct argument *argument = d->entry.deviation ? argument_of(d->entry.deviation) : NULL;
    if (argument && !argument->fallback && !d->format[0]) return fail_no_format(e);
    const char *word = d->group[0] ? d->group : d->op[0] ? d->op : d->format;
    if (word[0]) snprintf(d->entry.text, sizeof d->entry.text, "%s", word);
    if (d->index >= 0) snprintf(d->entry.text, sizeof d->entry.text, "%d", d->index);
    d->entry.argument = d->index >= 0 ? "index" : d->group[0] ? "group" : d->op[0] ? "op" : d->format[0] ? "format"
                      : factor ? "factor" : d->entry.has_value ? "value" : NULL;
    d->entry.in = (enum fault_run)d->in;
    return true;
}

bool fault_entry_read(struct reader *reader, const cJSON *item, const char *path, struct fault_entry *ret_entry)
{
    struct entry e = {.reader = reader, .item = item, .path = path, .draft = {.index = -1}};
    char found[96];
    reader_describe(item, found, sizeof found);
    if (!cJSON_IsObject(item)) return reader_fail(reader, path, "%s found; allowed: an object", found);
    bool good = reader_check_keys(reader, item, "faults[]", path) &&
                reader_read(reader, item, "faults[]", path, &e.draft) && resolve_names(&e) && resolve_parameters(&e);
    if (good) *ret_entry = e.draft.entry;
    return good;
}
