/* coll-count-mismatch: one rank passes a count that is one too small. The count is the caller's argument: the site's
 * component, not the collectives'. */
#include "scenarios/fault.h"

const struct fault fault_coll_count_mismatch = {
    .name = "coll-count-mismatch",
    .component = "fsdp.params",
    .injected = "one rank passes a count that is one too small",
    .visible = "the end of its part is not there, and nothing hangs",
    .checks = "collective-match",
    .source = "NCCL #1417, PyTorch #113376",
    .scenario = "fault_coll_count_mismatch.json",
    .signature = "calls-differ",
    .parts_count = 1,
    .parts = {{"fsdp.unshard", "shrink-count", "", 0, AT_RANK_ONE}},
};
