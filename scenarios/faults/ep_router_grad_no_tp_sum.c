/* ep-router-grad-no-tp-sum: the router's gradient, of which each tensor-parallel rank has its slice's part, is not summed. */
#include "scenarios/fault.h"

const struct fault fault_ep_router_grad_no_tp_sum = {
    .name = "ep-router-grad-no-tp-sum",
    .component = "moe.router",
    .injected = "the router's gradient, of which each tensor-parallel rank has its slice's part, is not summed",
    .visible = "copies of the router drift apart; the first loss is right, later ones hardly worse",
    .checks = "oracle,placement,replica-equality",
    .source = "Megatron-LM #599 / PR#619; torchtitan #2387/#2416",
    .scenario = "fault_ep_router_grad_no_tp_sum.json",
    .signature = "router-not-summed",
    .parts_count = 1,
    .parts = {{"moe.router_grad", "never", "", 0, AT_EVERYWHERE}},
};
