/* coll-noncontig: a strided output is written as if it were dense. */
#include "scenarios/fault.h"

const struct fault fault_coll_noncontig = {
    .name = "coll-noncontig",
    .component = "collectives",
    .injected = "a strided output is written as if it were dense",
    .visible = "elements of other places; the sum of all is right",
    .checks = "version",
    .source = "PyTorch #192920, #24836, #158902, #158903, #159548, #159549",
    .scenario = "fault_coll_noncontig.json",
    .signature = "altered",
    .parts_count = 1,
    .parts = {{"fsdp.unshard", "permute-chunks", "", 0, AT_LAYER_MIDDLE}},
};
