/* ep-pad-rows-garbage: the rows that pad an expert's to a multiple are not zeroed, and its weights' gradients are made from them too. */
#include "scenarios/fault.h"

const struct fault fault_ep_pad_rows_garbage = {
    .name = "ep-pad-rows-garbage",
    .component = "moe.experts",
    .injected = "the rows that pad an expert's to a multiple are not zeroed, and its weights' gradients are made from them too",
    .visible = "gradients of experts that are not finite, or noise that depends on the allocator",
    .checks = "poison",
    .source = "torchtitan #1237, #1254, #1340; maxtext #3699",
    .scenario = "fault_ep_pad_rows_garbage.json",
    .signature = "not-zeroed",
    .parts_count = 1,
    .parts = {{"moe.padding_rows", "not-zeroed", "", 0, AT_EVERYWHERE}},
};
