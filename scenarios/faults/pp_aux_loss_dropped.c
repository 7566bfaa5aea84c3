/* pp-aux-loss-dropped: the auxiliary losses of all stages but the last are lost. */
#include "scenarios/fault.h"

const struct fault fault_pp_aux_loss_dropped = {
    .name = "pp-aux-loss-dropped",
    .component = "moe.aux",
    .injected = "the auxiliary losses of all stages but the last are lost",
    .visible = "the routers of the earlier stages get no gradient from them; the main loss of the first step is right",
    .checks = "oracle,scale-ledger",
    .source = "Automodel #1408",
    .scenario = "fault_pp_aux_loss_dropped.json",
    .signature = "0",
    .parts_count = 1,
    .parts = {{"moe.aux", "never", "", 0, AT_STAGES_BUT_LAST}},
};
