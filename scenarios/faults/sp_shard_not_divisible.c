/* sp-shard-not-divisible: slices of the sequence leave out its last position, as where a length that does not divide is cut by floor division. */
#include "scenarios/fault.h"

const struct fault fault_sp_shard_not_divisible = {
    .name = "sp-shard-not-divisible",
    .component = "sp",
    .injected = "slices of the sequence leave out its last position, as where a length that does not divide is cut by floor division",
    .visible = "the last token is neither read nor trained",
    .checks = "oracle,placement",
    .source = "guess",
    .scenario = "fault_sp_shard_not_divisible.json",
    .signature = "slice-short",
    .parts_count = 1,
    .parts = {{"sp.slice_end", "never", "", 0, AT_EVERYWHERE}},
};
