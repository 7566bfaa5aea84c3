/* call_due: which call a site of the training program is to make, by the layout alone. */
#include "scenarios/call_due.h"

#include <string.h>

#include "model/sites.h"
#include "scenarios/context_due.h"
#include "scenarios/dispatch_calls.h"

bool call_due(const struct run_config *config, const struct site *site, struct call_due *ret)
{
    const struct layout *layout = &config->layout;
    bool apart = layout_ep(layout) > 1, scattered = layout->zero >= ZERO_2, steps = layout_ep_shards(layout) > 1;
    const char *over_tp = layout_slices_sequences(layout) ? "reduce_scatter" : "all_reduce";
    const char *model = layout->zero == ZERO_0 && layout->tp == 1 && !apart ? "pp" : "model";
    const char *shards = steps ? "edp_shard" : layout_shard_group(layout), *data = layout_data_group(layout);
    const char *copies = steps && layout->dispatcher != DISPATCH_REPLICATED ? "edp" : data, *tokens = layout_token_group(layout);
    bool sliced = layout_slices_sequences(layout), cp = layout_cp(layout) > 1;
    const struct call_due table[] = {
        {&site_fsdp_unshard, "all_gather", NULL, layout_shard_group(layout), apart ? shards : NULL},
        {&site_fsdp_reduce_grad, "reduce_scatter", "sum", layout_shard_group(layout), NULL},
        {&site_dp_all_reduce_grad, "all_reduce", "sum", data, NULL},
        {&site_ep_reduce_grad, scattered ? "reduce_scatter" : "all_reduce", "sum", scattered ? shards : copies, NULL},
        {&site_hsdp_replicate_reduce, "all_reduce", "sum", "dp_replicate", NULL},
        {&site_tied_grad_reduce, "all_reduce", "sum", "embedding", NULL},
        {&site_loss_token_count_reduce, "all_reduce", "sum", data, NULL},
        {&site_loss_report_reduce, "all_reduce", "avg", data, NULL},
        {&site_clip_norm_reduce, "all_reduce", "sum", model, NULL},
        {&site_amp_found_inf_reduce, "all_reduce", "max", model, NULL},
        {&site_tp_embedding_reduce, over_tp, "sum", "tp", NULL},
        {&site_tp_row_reduce, over_tp, "sum", "tp", NULL},
        {&site_tp_input_grad_reduce, over_tp, "sum", "tp", NULL},
        {&site_tp_loss_reduce, "all_reduce", "sum", "tp", NULL},
        {&site_tp_loss_max, "all_reduce", "max", "tp", NULL},
        {&site_sp_gather, "all_gather", NULL, "tp", NULL},
        {&site_sp_gather_again, "all_gather", NULL, "tp", NULL},
        {&site_sp_output_grad_gather, "all_gather", NULL, "tp", NULL},
        {&site_sp_grad_reduce, "all_reduce", "sum", "tp", NULL},
        {&site_sp_capacity_gather, "all_gather", NULL, tokens, NULL},
        {&site_sp_aux_count_reduce, "all_reduce", "sum", tokens, NULL},
        {&site_ep_count_reduce, "all_reduce", "sum", sliced ? cp ? "dp_cp_tp" : "dp_tp" : data, NULL},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        if (table[i].site != site) continue;
        *ret = table[i];
        return true;
    }
    return context_call_due(config, site, ret) || dispatch_call_due(config, site, ret);
}

bool call_group_is_due(const struct call_record *call, const struct call_due *due)
{
    return !strcmp(call->group, due->group) || (due->also && !strcmp(call->group, due->also));
}

bool call_is_due(const struct call_record *call, const struct call_due *due)
{
    return !strcmp(call->op, due->op) && call_group_is_due(call, due) &&
           (due->reduce ? call->reduce >= 0 && !strcmp(reduce_op_names[call->reduce], due->reduce) : call->reduce < 0);
}
