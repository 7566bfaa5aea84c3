/* describe: see the header. Texts that would be longer than their room are cut. */
#include "tools/report/describe.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "tools/report/number.h"

static void append(char text[DESCRIBE_TEXT], const char *format, ...) __attribute__((format(printf, 2, 3)));

static void append(char text[DESCRIBE_TEXT], const char *format, ...)
{
    size_t used = strlen(text);
    va_list list;
    va_start(list, format);
    vsnprintf(text + used, DESCRIBE_TEXT - used, format, list);
    va_end(list);
}

static void append_axis(char text[DESCRIBE_TEXT], bool *first, const char *name, int size)
{
    if (size == 1) return;
    append(text, "%s%s %d", *first ? " = " : " x ", name, size);
    *first = false;
}

const char *describe_precision(const struct precision *p, char text[DESCRIBE_TEXT])
{
    if (precision_is(p, p->param)) snprintf(text, DESCRIBE_TEXT, "%s", format_traits[p->param].name);
    else snprintf(text, DESCRIBE_TEXT, "%s compute, %s reduce", format_traits[p->compute].name, format_traits[p->reduce].name);
    return text;
}

/* "(attention, vocabulary)" where tensor parallelism leaves other parts whole. */
static void append_tensor_parts(char text[DESCRIBE_TEXT], const struct layout *l)
{
    static const struct { enum tensor_part part; const char *name; } parts[] = {
        {TENSOR_ATTENTION, "attention"}, {TENSOR_FEED_FORWARD, "feed_forward"}, {TENSOR_VOCABULARY, "vocabulary"},
    };
    bool first = true;
    if (l->tp == 1 || !l->tensor_whole) return;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (l->tensor_whole & parts[i].part) continue;
        append(text, "%s%s", first ? " (" : ", ", parts[i].name);
        first = false;
    }
    append(text, ")");
}

static const char *describe_attention(const struct run_config *config, char text[DESCRIBE_TEXT])
{
    const struct layout *l = &config->layout;
    const struct model_config *m = &config->model;
    char formats[DESCRIBE_TEXT];
    int ranks = layout_ranks(l);
    bool first = true;
    snprintf(text, DESCRIBE_TEXT, "%d rank%s", ranks, ranks == 1 ? "" : "s");
    append_axis(text, &first, "replicas", l->dp_replicate);
    append_axis(text, &first, "context", layout_cp(l));
    append(text, " (%s, %s)", l->context.method, l->context.layout);
    append(text, ", attention of %d head%s on %d key/value head%s of width %d, ", m->heads, m->heads == 1 ? "" : "s", m->kv_heads, m->kv_heads == 1 ? "" : "s", m->head_dim);
    if (config->attention.batch > 1) append(text, "%d sequences of ", config->attention.batch);
    append(text, "%d positions, %s", m->seq, m->causal ? "causal" : "not causal");
    if (m->window > 0) append(text, ", window %d", m->window);
    if (m->document_mask && config->attention.documents_count > 1) append(text, ", %d documents", config->attention.documents_count);
    if (config->attention.joint > 0) append(text, ", %d joint rows", config->attention.joint);
    if (config->attention.sinks) append(text, ", sinks");
    append(text, ", %s", describe_precision(&config->precision, formats));
    return text;
}

static const char *describe_denoise(const struct run_config *config, char text[DESCRIBE_TEXT])
{
    const struct layout *l = &config->layout;
    const struct model_config *m = &config->model;
    char formats[DESCRIBE_TEXT];
    int ranks = layout_ranks(l);
    bool first = true;
    snprintf(text, DESCRIBE_TEXT, "%d rank%s", ranks, ranks == 1 ? "" : "s");
    append_axis(text, &first, "replicas", l->dp_replicate);
    append_axis(text, &first, "context", layout_cp(l));
    if (layout_cp(l) > 1) append(text, " (%s, %s)", l->context.method, l->context.layout);
    append(text, ", %d iterations of %d layer%s on latents of %d positions x %d, %s, %s", config->iterations, m->layers, m->layers == 1 ? "" : "s", m->seq, m->dim, m->causal ? "causal" : "not causal",
           describe_precision(&config->precision, formats));
    return text;
}

const char *describe_layout(const struct run_config *config, char text[DESCRIBE_TEXT])
{
    if (config->workload == WORKLOAD_ATTENTION) return describe_attention(config, text);
    if (config->workload == WORKLOAD_DENOISE) return describe_denoise(config, text);
    const struct layout *l = &config->layout;
    char number[NUMBER_TEXT], formats[DESCRIBE_TEXT];
    int ranks = layout_ranks(l), per = layout_sequences_per_microbatch(config);
    bool first = true;
    static const char *const sharding[] = {"data parallel", "ZeRO-1", "ZeRO-2", "FSDP"};
    snprintf(text, DESCRIBE_TEXT, "%d rank%s", ranks, ranks == 1 ? "" : "s");
    append_axis(text, &first, "pipeline", l->pp);
    append_axis(text, &first, "replicas", l->dp_replicate);
    append_axis(text, &first, sharding[l->zero], l->dp_shard);
    append_axis(text, &first, "context", layout_cp(l));
    if (layout_cp(l) > 1) append(text, " (%s, %s)", l->context.method, l->context.layout);
    append_axis(text, &first, "tensor", l->tp);
    append_tensor_parts(text, l);
    if (layout_slices_sequences(l)) append(text, ", sequence parallel");
    static const char *const dispatchers[] = {"all_to_all", "all_gather", "replicated"};
    if (layout_ep(l) > 1) append(text, ", experts over %d (%s)", l->ep, dispatchers[l->dispatcher]);
    if (l->pp > 1) append(text, ", %s", l->schedule);
    append(text, ", %d micro-batch%s of %d sequence%s", l->microbatches, l->microbatches == 1 ? "" : "es", per,
           per == 1 ? "" : "s");
    struct arena *arena = arena_new("describe", false);
    struct param_table table = param_table_new(&config->model, arena);
    int64_t parameters = 0;
    for (int i = 0; i < table.count; i++) parameters += table.params[i].rows * table.params[i].columns;
    arena_free(arena);
    append(text, ", %s parameters, %s", number_count(parameters, number), describe_precision(&config->precision, formats));
    return text;
}

static void append_number(char text[DESCRIBE_TEXT], const char *name, int value)
{
    if (value >= 0) append(text, "%s%s %d", text[0] ? ", " : "", name, value);
}

const char *describe_place(const struct place *place, char text[DESCRIBE_TEXT])
{
    text[0] = 0;
    append_number(text, "rank", place->rank);
    append_number(text, "step", place->step);
    append_number(text, "micro-batch", place->microbatch);
    append_number(text, "layer", place->layer);
    if (place->layer < 0 && !place->param) append_number(text, "unit", place->unit);
    if (place->param) append(text, "%s%s", text[0] ? ", " : "", place->param);
    return text;
}

const char *describe_expectation(const struct expectation *expect, char text[DESCRIBE_TEXT])
{
    snprintf(text, DESCRIBE_TEXT, "%s", verdict_names[expect->given ? expect->verdict : VERDICT_CONSISTENT]);
    if (!expect->given) return text;
    if (expect->component[0]) append(text, " in %s", expect->component);
    if (expect->site[0]) append(text, " at %s", expect->site);
    char ranks[DESCRIBE_TEXT];
    if (expect->ranks_count > 0) append(text, ", ranks %s", describe_ranks(expect->ranks, expect->ranks_count, ranks));
    for (int i = 0; i < expect->checks_count; i++) append(text, "%s%s", i ? ", " : ", checks ", expect->checks[i]);
    return text;
}

const char *describe_ranks(const int *ranks, int count, char text[DESCRIBE_TEXT])
{
    text[0] = 0;
    for (int i = 0; i < count; i++) {
        int last = i;
        while (last + 1 < count && ranks[last + 1] == ranks[last] + 1) last++;
        append(text, "%s%d", text[0] ? ", " : "", ranks[i]);
        if (last > i + 1) append(text, "-%d", ranks[last]);
        else last = i;
        i = last;
    }
    return text;
}

static void append_places(char text[DESCRIBE_TEXT], const char *name, const char *plural, const struct at_list *list)
{
    char places[DESCRIBE_TEXT];
    if (list->count == 0) return;
    append(text, "%s%s%s %s", text[0] ? ", " : " at ", name, list->count > 1 ? plural : "",
           describe_ranks(list->values, list->count, places));
}

const char *describe_fault(const struct fault_entry *entry, char text[DESCRIBE_TEXT])
{
    static const char *const runs[] = {"", "in the standalone run", "in both runs"};
    char number[NUMBER_TEXT];
    text[0] = 0;
    append_places(text, "rank", "s", &entry->rank);
    append_places(text, "stage", "s", &entry->stage);
    append_places(text, "step", "s", &entry->step);
    append_places(text, "micro-batch", "es", &entry->microbatch);
    append_places(text, "layer", "s", &entry->layer);
    append_places(text, "hop", "s", &entry->hop);
    if (entry->param[0]) append(text, "%s%s", text[0] ? ", " : " at ", entry->param);
    if (entry->argument) append(text, "%s with %s %s", text[0] ? "," : "", entry->argument,
                                entry->text[0] ? entry->text : number_factor(entry->value, number));
    if (entry->once) append(text, "%s once on each rank", text[0] ? "," : "");
    if (entry->in != FAULT_IN_PARALLEL) append(text, "%s %s", text[0] ? "," : "", runs[entry->in]);
    return text;
}
