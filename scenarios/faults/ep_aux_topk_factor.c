/* ep-aux-topk-factor: the balancing loss does not divide by top_k although a token has so many experts. */
#include "scenarios/fault.h"

const struct fault fault_ep_aux_topk_factor = {
    .name = "ep-aux-topk-factor",
    .component = "moe.aux.loss",
    .injected = "the balancing loss does not divide by top_k although a token has so many experts",
    .visible = "the balancing loss and its gradient are top_k times what is due; the main loss of the first step is right",
    .checks = "oracle,routing",
    .source = "Megatron-LM 5c8eb08f66; HF transformers #28255, #31464",
    .scenario = "fault_ep_aux_topk_factor.json",
    .signature = "top-k-factor",
    .parts_count = 1,
    .parts = {{"moe.aux_top_k", "omit", "", 0, AT_EVERYWHERE}},
};
