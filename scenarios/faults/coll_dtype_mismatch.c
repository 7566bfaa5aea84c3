/* coll-dtype-mismatch: one rank reduces in bf16 where the others do in fp32. The format is the caller's argument:
 * the site's component, not the collectives'. */
#include "scenarios/fault.h"

const struct fault fault_coll_dtype_mismatch = {
    .name = "coll-dtype-mismatch",
    .component = "fsdp.reduce_grad",
    .injected = "one rank reduces in bf16 where the others do in fp32",
    .visible = "its contributions are of another precision, and on a real wire of other bits",
    .checks = "collective-match",
    .source = "PyTorch #110408",
    .scenario = "fault_coll_dtype_mismatch.json",
    .signature = "calls-differ",
    .parts_count = 1,
    .parts = {{"fsdp.reduce_grad", "wrong-format", "bf16", 0, AT_DATA_RANK_ONE}},
};
