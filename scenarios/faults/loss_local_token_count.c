/* loss-local-token-count: each data rank divides by its own count of valid tokens, and the ranks are averaged. */
#include "scenarios/fault.h"

const struct fault fault_loss_local_token_count = {
    .name = "loss-local-token-count",
    .component = "pp.loss",
    .injected = "each data rank divides by its own count of valid tokens, and the ranks are averaged",
    .visible = "tokens weigh differently from data rank to data rank",
    .checks = "token-weight",
    .source = "transformers #34579; verl #5625",
    .scenario = "fault_loss_local_token_count.json",
    .signature = "N/(n_rank*D)",
    .parts_count = 1,
    .parts = {{"pp.loss.scale", "times", "N/(n_rank*D)", 0, AT_EVERYWHERE}},
};
