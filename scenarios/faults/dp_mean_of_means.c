/* dp-mean-of-means: the data ranks' means over their own valid tokens are averaged although the counts differ. */
#include "scenarios/fault.h"

const struct fault fault_dp_mean_of_means = {
    .name = "dp-mean-of-means",
    .component = "loss.scaling",
    .injected = "the data ranks' means over their own valid tokens are averaged although the counts differ",
    .visible = "tokens weigh differently from data rank to data rank",
    .checks = "token-weight",
    .source = "Megatron-LM adfa873d96; torchtitan #2206, #1842; transformers #34191, #34242; verl #5625, #3332",
    .scenario = "fault_dp_mean_of_means.json",
    .signature = "N/(n_rank*D)",
    .parts_count = 1,
    .parts = {{"dp.loss.scale", "times", "N/(n_rank*D)", 0, AT_EVERYWHERE}},
};
