/* call_due: which call a site of the training program is to make, by the layout alone. */
#include "scenarios/call_due.h"

#include <string.h>

#include "model/sites.h"

bool call_due(const struct run_config *config, const struct site *site, struct call_due *ret)
{
    const char *over_tp = layout_slices_sequences(&config->layout) ? "reduce_scatter" : "all_reduce";
    const char *model = config->layout.zero == ZERO_0 && config->layout.tp == 1 ? "pp" : "model";
    const struct call_due table[] = {
        {&site_fsdp_unshard, "all_gather", NULL, "dp_shard"},
        {&site_fsdp_reduce_grad, "reduce_scatter", "sum", "dp_shard"},
        {&site_dp_all_reduce_grad, "all_reduce", "sum", "dp"},
        {&site_hsdp_replicate_reduce, "all_reduce", "sum", "dp_replicate"},
        {&site_tied_grad_reduce, "all_reduce", "sum", "embedding"},
        {&site_loss_token_count_reduce, "all_reduce", "sum", "dp"},
        {&site_loss_report_reduce, "all_reduce", "avg", "dp"},
        {&site_clip_norm_reduce, "all_reduce", "sum", model},
        {&site_amp_found_inf_reduce, "all_reduce", "max", model},
        {&site_tp_embedding_reduce, over_tp, "sum", "tp"},
        {&site_tp_row_reduce, over_tp, "sum", "tp"},
        {&site_tp_input_grad_reduce, over_tp, "sum", "tp"},
        {&site_sp_gather, "all_gather", NULL, "tp"},
        {&site_sp_gather_again, "all_gather", NULL, "tp"},
        {&site_sp_output_grad_gather, "all_gather", NULL, "tp"},
        {&site_sp_grad_reduce, "all_reduce", "sum", "tp"},
        {&site_tp_loss_reduce, "all_reduce", "sum", "tp"},
        {&site_tp_loss_max, "all_reduce", "max", "tp"},
        {&site_ep_count_reduce, "all_reduce", "sum", layout_slices_sequences(&config->layout) ? "dp_tp" : "dp"},
        {&site_sp_capacity_gather, "all_gather", NULL, "tp"},
        {&site_sp_aux_count_reduce, "all_reduce", "sum", "tp"},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        if (table[i].site != site) continue;
        *ret = table[i];
        return true;
    }
    return false;
}

bool call_is_due(const struct call_record *call, const struct call_due *due)
{
    return !strcmp(call->op, due->op) && !strcmp(call->group, due->group) &&
           (due->reduce ? call->reduce >= 0 && !strcmp(reduce_op_names[call->reduce], due->reduce) : call->reduce < 0);
}
