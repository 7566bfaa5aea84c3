/* dropout-same-on-every-rank: every data rank draws the dropout masks of data rank 0. */
#include "scenarios/fault.h"

const struct fault fault_dropout_same_on_every_rank = {
    .name = "dropout-same-on-every-rank",
    .component = "dropout",
    .injected = "every data rank draws the dropout masks of data rank 0",
    .visible = "losses differ from the first step on, by no ratio; noise that should average out does not",
    .checks = "rng",
    .source = "guess: one generator state for all data ranks",
    .scenario = "fault_dropout_same_on_every_rank.json",
    .signature = "same-stream",
    .parts_count = 1,
    .parts = {{"dropout.sequence", "duplicate-rows", "", 0, AT_EVERYWHERE}},
};
