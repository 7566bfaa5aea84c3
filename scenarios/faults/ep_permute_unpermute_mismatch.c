/* ep-permute-unpermute-mismatch: experts' outputs are put back by the map that sorted the tokens, not by its inverse. */
#include "scenarios/fault.h"

const struct fault fault_ep_permute_unpermute_mismatch = {
    .name = "ep-permute-unpermute-mismatch",
    .component = "moe.dispatch",
    .injected = "experts' outputs are put back by the map that sorted the tokens, not by its inverse",
    .visible = "outputs land on other tokens; the loss still falls",
    .checks = "oracle,row-identity",
    .source = "TransformerEngine #2907; NCCL-EP 62f19084",
    .scenario = "fault_ep_permute_unpermute_mismatch.json",
    .signature = "wrong-inverse",
    .parts_count = 1,
    .parts = {{"moe.unpermute", "never", "", 0, AT_EVERYWHERE}},
};
