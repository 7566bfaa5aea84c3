/* loss-scaled-each-accumulation: the gradient accumulated so far is divided by the micro-batches after each of
 * them. */
#include "scenarios/fault.h"

const struct fault fault_loss_scaled_each_accumulation = {
    .name = "loss-scaled-each-accumulation",
    .component = "pp.loss",
    .injected = "the gradient accumulated so far is divided by the micro-batches after each of them",
    .visible = "an exponential average: the k-th micro-batch from the end weighs 1/M^k",
    .checks = "token-weight",
    .source = "torchtitan #1732, #1733",
    .scenario = "fault_loss_scaled_each_accumulation.json",
    .signature = "1/M",
    .parts_count = 1,
    .parts = {{"pp.grad.accumulate", "per-accumulation-step", "1/M", 0, AT_EVERYWHERE}},
};
