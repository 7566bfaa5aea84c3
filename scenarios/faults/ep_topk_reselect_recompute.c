/* ep-topk-reselect-recompute: the recomputation chooses experts anew, and equal scores fall to another one. */
#include "scenarios/fault.h"

const struct fault fault_ep_topk_reselect_recompute = {
    .name = "ep-topk-reselect-recompute",
    .component = "moe.router",
    .injected = "a layer that is computed again for its backward runs top-k anew, and of equal scores takes the last where its forward took the first",
    .visible = "the loss is right; where scores tie, gradients go through experts that the forward did not use. Scores of few bits tie",
    .checks = "oracle,rng",
    .source = "NeMo Automodel issue 3140",
    .scenario = "fault_ep_topk_reselect_recompute.json",
    .signature = "reselected",
    .parts_count = 1,
    .parts = {{"recompute.reselect", "never", "", 0, AT_EVERYWHERE}},
};
