/* attention-output-view: attention's output is viewed with its first two axes exchanged, without moving the data. */
#include "scenarios/fault.h"

const struct fault fault_attention_output_view = {
    .name = "attention-output-view",
    .component = "attention.output_view",
    .injected = "attention's output [batch, seq, heads * head_dim] is read as [seq, batch, heads * head_dim]",
    .visible = "the loss depends on how the batch is cut into micro-batches, and positions see the future; right for micro-batches of one sequence",
    .checks = "batch-cut,influence",
    .source = "the demonstration model of hyper-parallel issue 193 (moe_transformer_parallel_demo.py)",
    .scenario = "fault_attention_output_view.json",
    .signature = "batch-dependent",
    .parts_count = 1,
    .parts = {{"attention.output_view", "wrong-axis", "", 0, AT_EVERYWHERE}},
};
