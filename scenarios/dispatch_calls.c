/* dispatch_calls: see dispatch_calls.h. The rule, not the program: model/layers/dispatch.h.
 *
 *   all_to_all   forward   counts, dispatch, combine            backward   combine_grad, dispatch_grad; each twice in two steps
 *   all_gather   forward   counts, map, dispatch, combine       backward   combine_grad, gate_grad, dispatch_grad
 *   replicated   forward   combine                              backward   gate_grad, dispatch_grad
 *   tp ranks that share their tokens out: token_gather forward; gate_grad_gather, token_grad_gather backward
 *   expert tensor parallelism: row_reduce forward; input_grad_reduce backward; with slices of the sequences counts and gather
 *   before, output_grad_gather too
 * A forward that is made again (recompute full) makes its calls again. */
#include "scenarios/dispatch_calls.h"

#include <string.h>

#include "model/sites.h"

enum by { BY_ALL_TO_ALL = 1 << DISPATCH_ALL_TO_ALL, BY_ALL_GATHER = 1 << DISPATCH_ALL_GATHER, BY_REPLICATED = 1 << DISPATCH_REPLICATED };
struct calls { const struct site *site; bool backward; unsigned by; const char *op[3]; /* of each dispatcher */ };
static const struct calls calls[] = {
    {&site_ep_counts, false, BY_ALL_TO_ALL | BY_ALL_GATHER, {"all_to_all", "all_gather", ""}},
    {&site_ep_map, false, BY_ALL_GATHER, {"", "all_gather", ""}},
    {&site_ep_dispatch, false, BY_ALL_TO_ALL | BY_ALL_GATHER, {"all_to_all", "all_gather", ""}},
    {&site_ep_combine, false, BY_ALL_TO_ALL | BY_ALL_GATHER | BY_REPLICATED, {"all_to_all", "reduce_scatter", "all_reduce"}},
    {&site_ep_combine_grad, true, BY_ALL_TO_ALL | BY_ALL_GATHER, {"all_to_all", "all_gather", ""}},
    {&site_ep_gate_grad, true, BY_ALL_GATHER | BY_REPLICATED, {"", "reduce_scatter", "all_reduce"}},
    {&site_ep_dispatch_grad, true, BY_ALL_TO_ALL | BY_ALL_GATHER | BY_REPLICATED, {"all_to_all", "reduce_scatter", "all_reduce"}},
};
/* Of tp ranks that share their tokens out; of expert tensor parallelism (with slices of the sequences: the second operation). */
static const struct { const struct site *site; bool backward, of_copies; const char *op, *of_slices; } around[] = {
    {&site_ep_token_gather, false, true, "all_gather", NULL}, {&site_ep_gate_grad_gather, true, true, "all_gather", NULL},
    {&site_ep_token_grad_gather, true, true, "all_gather", NULL}, {&site_etp_row_reduce, false, false, "all_reduce", "reduce_scatter"},
    {&site_etp_input_grad_reduce, true, false, "all_reduce", "reduce_scatter"}, {&site_etp_counts, false, false, NULL, "all_gather"},
    {&site_etp_gather, false, false, NULL, "all_gather"}, {&site_etp_output_grad_gather, true, false, NULL, "all_gather"},
};

static const char *op_around(const struct layout *layout, size_t i)
{
    return layout->sequence_parallel ? around[i].of_slices : around[i].op;
}

static bool in_two_steps(const struct layout *layout)
{
    return layout->dispatcher == DISPATCH_ALL_TO_ALL && layout->ep_inner > 1 && layout->ep_inner < layout_ep(layout);
}

static bool shares_tokens_out(const struct layout *layout)
{
    return layout_ep(layout) > 1 && layout->experts_over_tp && layout->tp > 1 && !layout->sequence_parallel && layout->dispatcher != DISPATCH_REPLICATED;
}

int64_t dispatch_tokens_due(const struct layout *layout, int64_t tokens, int me)
{
    if (!shares_tokens_out(layout)) return tokens;
    int64_t members = layout_ep(layout) < layout->tp ? layout_ep(layout) : layout->tp, each = (tokens + members - 1) / members, first = me % members * each;
    return first + each <= tokens ? each : first < tokens ? tokens - first : 0;
}

static int64_t layers_with_experts(const struct record *record, const struct rank_record *rank)
{
    const struct model_config *model = &record->config.model;
    int64_t count = 0;
    for (int u = rank->first_unit; u < rank->first_unit + rank->units; u++) count += u >= 1 && u <= model->layers && model_layer_has_experts(model, u - 1);
    return count;
}

int64_t dispatch_calls_due(const struct record *record, const struct rank_record *rank, const struct site *site)
{
    const struct layout *layout = &record->config.layout;
    int64_t backwards = layers_with_experts(record, rank) * record->config.train.steps * layout->microbatches;
    int64_t forwards = backwards * (layout->recompute.mode == RECOMPUTE_FULL ? 2 : 1);
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        if (calls[i].site != site) continue;
        bool made = layout_ep(layout) > 1 && calls[i].by & 1u << layout->dispatcher;
        return made ? (calls[i].backward ? backwards : forwards) * (in_two_steps(layout) ? 2 : 1) : 0;
    }
    for (size_t i = 0; i < sizeof around / sizeof *around; i++) {
        if (around[i].site != site) continue;
        bool made = around[i].of_copies ? shares_tokens_out(layout) : layout->etp > 1 && op_around(layout, i);
        return made ? (around[i].backward ? backwards : forwards) : 0;
    }
    return -1;
}

bool dispatch_call_due(const struct run_config *config, const struct site *site, struct call_due *ret)
{
    const struct layout *layout = &config->layout;
    bool steps = in_two_steps(layout);
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        if (calls[i].site != site || layout_ep(layout) == 1 || !(calls[i].by & 1u << layout->dispatcher)) continue;
        const char *op = calls[i].op[layout->dispatcher];
        bool sums = !strcmp(op, "all_reduce") || !strcmp(op, "reduce_scatter");
        *ret = (struct call_due){site, op, sums ? "sum" : NULL, steps ? "ep_inner" : "ep", steps ? "ep_outer" : NULL};
        return true;
    }
    for (size_t i = 0; i < sizeof around / sizeof *around; i++) {
        const char *op = around[i].of_copies ? around[i].op : op_around(layout, i);
        if (around[i].site != site || !op) continue;
        *ret = (struct call_due){site, op, !strcmp(op, "all_gather") ? NULL : "sum", around[i].of_copies ? "ep_copies" : "tp", NULL};
        return true;
    }
    return false;
}
