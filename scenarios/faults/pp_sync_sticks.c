/* pp-sync-sticks: the flag that this backward is the last is never taken back. */
#include "scenarios/fault.h"

const struct fault fault_pp_sync_sticks = {
    .name = "pp-sync-sticks",
    .component = "fsdp.sync_now",
    .injected = "the flag that this backward is the last is never taken back",
    .visible = "gradients are reduced after every micro-batch from then on: right, and slow",
    .checks = "contribution",
    .source = "hyper-parallel",
    .scenario = "fault_pp_sync_sticks.json",
    .signature = "early",
    .parts_count = 1,
    .parts = {{"fsdp.sync_now", "stick", "", 0, AT_EVERYWHERE}},
};
