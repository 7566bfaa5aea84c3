/* coll-inplace-offset: an all-gather in place reads its part from slot 0 of the output, not from its own. */
#include "scenarios/fault.h"

const struct fault fault_coll_inplace_offset = {
    .name = "coll-inplace-offset",
    .component = "collectives",
    .injected = "an all-gather in place reads its part from slot 0 of the output, not from its own",
    .visible = "every member but the first gives something else than its shard",
    .checks = "version",
    .source = "Aluminum #22, #74, #92, Open MPI #9385",
    .scenario = "fault_coll_inplace_offset.json",
    .signature = "not-gathered",
    .parts_count = 1,
    .parts = {{"fsdp.unshard", "wrong-slot", "", 0, AT_EVERYWHERE}},
};
