/* coll-torn-read: a message is taken for complete when half of it is there. */
#include "scenarios/fault.h"

const struct fault fault_coll_torn_read = {
    .name = "coll-torn-read",
    .component = "async",
    .injected = "a message is taken for complete when half of it is there",
    .visible = "the second half is old or garbage",
    .checks = "race",
    .source = "NCCL 774a9c17",
    .scenario = "fault_coll_torn_read.json",
    .signature = "read-early",
    .parts_count = 1,
    .parts = {{"fsdp.unshard", "torn", "", 0, AT_LAYER_MIDDLE}},
};
