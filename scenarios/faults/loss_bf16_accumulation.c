/* loss-bf16-accumulation: a micro-batch's token losses are added up in bf16. */
#include "scenarios/fault.h"

const struct fault fault_loss_bf16_accumulation = {
    .name = "loss-bf16-accumulation",
    .component = "loss.sum",
    .injected = "a micro-batch's token losses are added up in bf16",
    .visible = "the printed sum is low and stalls where a term is below half a unit of the sum",
    .checks = "precision",
    .source = "hyper-parallel, PyTorch #106395",
    .scenario = "fault_loss_bf16_accumulation.json",
    .signature = "rounded",
    .parts_count = 1,
    .parts = {{"loss.sum", "round", "bf16", 0, AT_EVERYWHERE}},
};
