/* ep-index-overflow: the numbers of arrived rows are kept in too few bits (six here; 8 or 16 in a real kernel). */
#include "scenarios/fault.h"

const struct fault fault_ep_index_overflow = {
    .name = "ep-index-overflow",
    .component = "ep.dispatch",
    .injected = "the numbers of arrived rows are kept in too few bits (six here; 8 or 16 in a real kernel)",
    .visible = "experts read first rows again in the place of those behind row 64",
    .checks = "oracle,conservation",
    .source = "Tutel ae44c2b; NCCL-EP c43db7e5, 7c308bfe",
    .scenario = "fault_ep_index_overflow.json",
    .signature = "other-row",
    .parts_count = 1,
    .parts = {{"ep.index_bits", "set", "", 6, AT_EVERYWHERE}},
};
