/* dump: the parallel run's parameters after the last step, and that step's raw gradients, in their full
 * shapes and under their own names, put together from every rank's rows (with tensor parallelism, of its part). The tied copy of an embedding is
 * left out; where a run did not write some rows they stay NaN. */
#include <stdlib.h>
#include <string.h>
#include "model/safetensors.h"
#include "scenarios/facts.h"
#include "tools/command.h"
#include "tools/report/report.h"

static void take_rows(const struct record *record, int param, enum tensor_kind kind, int step, char *data,
                      int64_t *ret_rows)
{
    const struct param *p = &record->params.params[param];
    size_t bytes = format_storage_bytes(run_storage(&record->config));
    for (int r = 0; r < record->ranks; r++) {
        const struct rank_record *rank = &record->rank[r];
        for (int i = 0; i < rank->tensors.count; i++) {
            const struct tensor_fact *f = &rank->tensors.items[i];
            if (f->param != param || f->kind != kind || f->step != step || f->replica != 0 || f->unit != p->unit ||
                !f->data)
                continue;
            for (size_t k = 0; k < (size_t)f->elements; k++)
                memcpy(data + facts_whole_element(record, f, (size_t)f->first + k) * bytes, (const char *)f->data + k * bytes, bytes);
            *ret_rows += f->elements;
        }
    }
}

static struct safetensors_entry make_entry(const struct record *record, int param, enum tensor_kind kind, int step,
                                           struct arena *arena, int64_t *ret_rows)
{
    const struct param *p = &record->params.params[param];
    enum format storage = run_storage(&record->config);
    size_t bytes = (size_t)(p->rows * p->columns) * format_storage_bytes(storage);
    char *data = arena_alloc(arena, bytes);
    memory_poison(data, bytes);
    take_rows(record, param, kind, step, data, ret_rows);
    struct tensor tensor =
        p->info.dims == 1 ? tensor_1d(data, storage, p->rows) : tensor_2d(data, storage, p->rows, p->columns);
    const char *prefix = kind == TENSOR_GRADIENT ? "grad." : "";
    return (struct safetensors_entry){arena_printf(arena, "%s%s", prefix, p->info.name), tensor};
}

bool report_dump(const struct result *result, const char *path, struct error *error)
{
    const struct record *record = result->parallel;
    int step = record->config.train.steps - 1, count = record->params.count;
    struct arena *arena = arena_new("dump", false);
    struct safetensors_entry *entries = arena_alloc(arena, (size_t)(2 * count) * sizeof *entries);
    int64_t rows = 0;
    for (int i = 0; i < count; i++) {
        entries[i] = make_entry(record, i, TENSOR_PARAM, step, arena, &rows);
        entries[count + i] = make_entry(record, i, TENSOR_GRADIENT, step, arena, &rows);
    }
    struct safetensors_note notes[] = {
        {"hpsim", HPSIM_VERSION},
        {"scenario", result->scenario->name},
        {"seed", arena_printf(arena, "%llu", (unsigned long long)record->config.seed)},
        {"step", arena_printf(arena, "%d", step)},
    };
    bool good =
        rows > 0 ? safetensors_write(path, entries, (size_t)(2 * count), notes, sizeof notes / sizeof notes[0], error)
        : result->scenario->config.workload != WORKLOAD_TRAIN
                 ? error_input(error, "nothing to dump: parameters and gradients are a training's, and the scenario's workload is another")
                 : error_input(error, "nothing to dump: the run ended before its last step did");
    arena_free(arena);
    return good;
}
