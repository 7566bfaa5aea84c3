/* coll-order-mismatch: one rank starts two all-gathers in the other order. The order of calls is the caller's: the
 * site's component, not the collectives'. */
#include "scenarios/fault.h"

const struct fault fault_coll_order_mismatch = {
    .name = "coll-order-mismatch",
    .component = "fsdp.params",
    .injected = "one rank starts two all-gathers in the other order",
    .visible = "the group waits for ever, or each takes the other's data",
    .checks = "collective-match,liveness",
    .source = "Megatron-LM #3401, #2218",
    .scenario = "fault_coll_order_mismatch.json",
    .signature = "calls-differ",
    .parts_count = 1,
    .parts = {{"fsdp.unshard", "swap-calls", "", 0, AT_RANK_ONE}},
};
