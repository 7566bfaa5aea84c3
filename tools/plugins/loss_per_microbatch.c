/* loss_per_microbatch: a loss normalization. Each micro-batch's mean, averaged over micro-batches and data ranks: hpsim's own
 * "deepspeed_pipe" in other words. What it brings is four expressions: docs/plugins.md. */
#include <hpsim.h>

static const struct hpsim_loss losses[] = {{
    .name = "per_microbatch",
    .what = "the mean over a micro-batch's valid tokens, averaged over micro-batches and data ranks",
    .denominator = "n",
    .scale = "1/M",
    .combine = HPSIM_COMBINE_MEAN,
    .grad_scale = "1",
    .weight = "1/(n*M*D)",
    .logged = "1/(n*M*D)",
}};

static const struct hpsim_description description = {
    .abi = HPSIM_ABI, .size = sizeof(struct hpsim_description), .name = "loss_per_microbatch", .losses = losses, .losses_count = 1,
};

const struct hpsim_description *hpsim_plugin(void)
{
    return &description;
}
