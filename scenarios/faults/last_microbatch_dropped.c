/* last-microbatch-dropped: the last micro-batch of a data rank, left over when a batch is cut, is neither trained on nor printed, while its tokens are counted. */
#include "scenarios/fault.h"

const struct fault fault_last_microbatch_dropped = {
    .name = "last-microbatch-dropped",
    .component = "pp.loss",
    .injected = "the last micro-batch of a data rank, left over when a batch is cut, is neither trained on nor printed, while its tokens are counted",
    .visible = "the printed loss and the gradient lack its share",
    .checks = "token-weight,logged-loss",
    .source = "hyper-parallel raises where B % M is not 0; others drop",
    .scenario = "fault_last_microbatch_dropped.json",
    .signature = "0",
    .parts_count = 2,
    .parts = {{"pp.loss.scale", "times", "0", 0, AT_LAST_MICROBATCH}, {"loss.report", "times", "0", 0, AT_LAST_MICROBATCH}},
};
