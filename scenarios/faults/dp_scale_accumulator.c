/* dp-scale-accumulator: the reduced gradient so far is divided by the data ranks after each micro-batch, instead
 * of each result once. */
#include "scenarios/fault.h"

const struct fault fault_dp_scale_accumulator = {
    .name = "dp-scale-accumulator",
    .component = "dp.scaling",
    .injected = "the reduced gradient so far is divided by the data ranks after each micro-batch, instead of each result once",
    .visible = "an exponential average: earlier micro-batches weigh less",
    .checks = "token-weight,scale-ledger",
    .source = "torchtitan #1732 (3e1b843ec)",
    .scenario = "fault_dp_scale_accumulator.json",
    .signature = "1/D",
    .parts_count = 1,
    .parts = {{"dp.grad.accumulate", "per-accumulation-step", "1/D", 0, AT_EVERYWHERE}},
};
