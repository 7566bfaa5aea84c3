/* diagnosis: words. One entry a site (and, where it matters, a pattern): a sentence about what is wrong, and
 * what to look at next. In the sentences stand
 *   {Ranks} {ranks}  "Rank 6", "ranks 6 and 7"       {unit}   "layer 3"; "every unit" where all are concerned
 *   {ratio}          "1/M" with its letters explained {step}   the step       {first} the first finding's own sentence
 *   {weight} {denominator} {printed}   what the loss convention makes due
 *   {mb}             "micro-batch 2", "every micro-batch"     {s} {es} {do} {their}  by the number of ranks
 * The scenario's file is not known here: SCENARIO stands for it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/sites.h"
#include "scenarios/diagnosis.h"
#include "scenarios/facts.h"

struct words { const char *site /* NULL: any */, *pattern /* NULL: any */, *summary, *next; };

static const struct words table[] = {
    {NULL, "read-early", "{Ranks} use{s} the result of an asynchronous call that was not waited for: {first}",
     "look at where the handle of this call is waited for: before the first use of its output, on every path"},
    {NULL, "overwritten", "On {ranks} a buffer changes while an asynchronous call sends from it: {first}",
     "look at who writes or frees this buffer next: only after the call was waited for"},
    {NULL, "aliased", "On {ranks} a call writes its result over its own input, which is read again later: {first}",
     "look at the buffers that this call is given: its input must be a copy, or its own place in the output"},
    {NULL, "wrong-format", "{Ranks} move{s} and add{s} in another number format than the scenario declares: {first}",
     "look at the cast before this call, and at what the reduction's format is set from"},
    {NULL, "wrong-group", "{Ranks} make{s} a call in another group than is due: {first}",
     "look at which axis of the mesh this group is made of; groups of one size give right shapes and other ranks' data"},
    {NULL, "wrong-root", "{Ranks} take{s} what the wrong member sends: {first}",
     "look at whether the root is a rank of the group or of the world"},
    {"data.sample", "same-samples",
     "{Ranks} read{s} the samples of data rank 0 instead of {their} own, so some sequences of step {step} are trained "
     "on several times and others never",
     "look where the sampler gets its rank and its number of replicas: it needs the data rank, not a constant"},
    {"data.sample", "stages-differ", "{Ranks} and the first stage read different batches for one micro-batch",
     "look at how the data loaders of first and last stage are seeded and advanced"},
    {"data.sample", NULL, "{Ranks} read{s} other sequences than are due to {their} data rank and micro-batch: {first}",
     "look at the index that the sampler computes from step, data rank and micro-batch"},
    {"cp.labels", NULL, "{Ranks} shift{s} labels within {their} part of each sequence, so that targets at its seams are lost: {first}",
     "look at whether labels are shifted before sequences are split over context-parallel ranks: the target at a seam is on another rank"},
    {"cp.position", NULL, "{Ranks} turn{s} queries and keys by positions counted from the start of {their} own part of the sequence: {first}",
     "look at what RoPE gets: positions of the whole sequence, as the layout has them, not 0, 1, 2, ... on every context-parallel rank"},
    {"labels", NULL, "{Ranks} train{s} on other targets than the tokens that come next in step {step}: {first}",
     "look at who shifts the labels: the data loader or the loss, but not both"},
    {"fsdp.no_decay", NULL, "{Ranks} decay{s} parameters that weight decay is to leave out, since sharding lost the tag: {first}",
     "look at how parameters are told apart once they are shards: a flat one has one dimension, or another name"},
    {"optimizer.group", NULL, "{Ranks} update{s} parameters that decay with the settings of those that do not: {first}",
     "look at the key that groups of parameters are told apart by: it must hold all that they differ in"},
    {"fsdp.attributes", NULL, "{Ranks} train{s} a parameter that is frozen, since sharding lost the tag: {first}",
     "look at what is copied from a parameter to its sharded form: requires_grad, no-decay and other attributes too"},
    {"fsdp.optimizer_params", NULL,
     "The optimizer of {ranks} writes to other tensors than the shards that computing gathers: {first}",
     "make the optimizer after sharding, from the parameters that the sharded model has"},
    {"optimizer.copy", NULL,
     "{Ranks} compute{s} with weights that the master values of the last update did not all reach: {first}",
     "look at the copy from master to computing weights: which ranges, and whether it also runs after loading"},
    {"dp.param_buffer", NULL, "Something wrote to the parameters of {ranks} between the update and their use: {first}",
     "look at what is zeroed at the start of a step: a buffer that gradients and parameters share must be zeroed in part"},
    {"fsdp.shard", NULL, "The optimizer of {ranks} does not hold all rows of a shard: {first}",
     "look at how uneven shards are made: the last one has fewer rows, and all of them count"},
    {"fsdp.unshard", "stale-version",
     "{Ranks} compute{s} {unit} in step {step} with parameters gathered before the optimizer's last update",
     "look at where the all-gather is started ahead: it must wait for the update of the shards it reads"},
    {"fsdp.unshard", NULL, "The gathered parameters of {unit} on {ranks} are not those of step {step}: {first}",
     "look at the all-gather of this unit: who takes part, from which buffer, and whether it is waited for"},
    {"pp.schedule", NULL,
     "{Ranks} wait for each other for ever, since the schedule's warm-up takes more micro-batches than there are: {first}",
     "use at least as many micro-batches as stages, or a schedule that cuts its warm-up to the micro-batches there are"},
    {"pp.send_activation", "deadlock",
     "{Ranks} wait for each other for ever while activations go from stage to stage: {first}",
     "look at the order of send and receive on the two stages: with blocking sends one of two neighbours must receive "
     "first"},
    {"pp.send_activation", NULL,
     "{Ranks} compute{s} {unit} on an activation that is not the one the stage before sent: {first}",
     "look at the receive of this stage: its buffer, its tag, and whether it is waited for before the forward"},
    {"attention.output_view", NULL,
     "The output of attention in {unit} is read with its axes mistaken for each other: rows of other positions and sequences stand in "
     "each one's place, so the loss depends on how the batch is cut: {first}",
     "look at the reshape after attention: [batch, seq, heads * head_dim] must be transposed before it is viewed as [seq, batch, ...]; it "
     "is right for one sequence a micro-batch only"},
    {"cp.rotate", NULL, "{Ranks} compute{s} attention over {their} own keys and values alone: nothing that another rank holds is in {their} output",
     "look at the loop over ring steps: whether it is entered, and whether what it receives is used; a result that equals the local one bit by bit is the sign"},
    {"cp.skip_block", "all-skipped", "{Ranks} leave{s} out the blocks of all other ranks, though they come by and are passed on",
     "look at the condition under which {ranks} skip{s} a block"},
    {"cp.skip_block", "causal-skip", "{Ranks} leave{s} out the blocks of later ranks, as a causal mask over contiguous shards would have it, and this mask or layout shows them",
     "look at the condition of the skip: it holds for a causal mask and contiguous shards only (not causal or step <= rank computes)"},
    {"cp.skip_block", "past-skipped", "{Ranks} leave{s} out the blocks that the causal mask shows and compute{s} those that it hides",
     "with keys and values received from the rank before, step s <= rank is the past: compute there, and skip the rest"},
    {"cp.skip_block", "unguarded-past", "{Ranks} leave{s} out the blocks of earlier ranks, which come at steps up to the rank's number, though no causal mask hides them",
     "look at the condition of the skip: only a causal mask may leave blocks out; where a query sees the whole sequence, leave out none"},
    {"cp.skip_block", "past-skipped-and-overwritten", "{Ranks} keep{s} one block alone: blocks that come at steps up to the rank's number are left out, and each of the others is written over the one before",
     "two mistakes at once: only a causal mask may leave blocks out, and every block's result is merged by its log-sum-exp"},
    {"cp.mask_passed", "masked-otherwise", "{Ranks} mask{s} by other positions than {their} rows have: {first}",
     "look at which positions the mask compares: those of the whole sequence, of queries and of keys, and not a row's number in its shard or block"},
    {"cp.axes", NULL, "On {ranks} attention goes over the heads of a position and not over positions",
     "look at the axes of q, k and v: [batch, rows, heads, head_dim] must be transposed before scores are made over rows"},
    {"cp.softmax_scale", "alone-too", "{Ranks} compute{s} attention wrongly without any split too: {first}",
     "run it on one rank (--set parallel.cp=1), and look at the scale, 1 / sqrt(head_dim), at which key/value head a query head reads, and at the order of its rows"},
    {"cp.skip_block", "skipped-and-overwritten", "{Ranks} keep{s} one block alone: blocks of later ranks are left out, as a causal mask would have it, and each of the others is written over the one before",
     "two mistakes at once: compute where not causal or step <= rank, and merge by the log-sum-exp after every step"},
    {"cp.skip_block", "hidden-too", "{Ranks} compute{s} blocks of which the mask hides every key: work for nothing, the numbers are right",
     "look at the condition that leaves out what a causal mask hides"},
    {"cp.skip_block", "nothing", "{Ranks} leave{s} out every block, {their} own too: {first}",
     "look at the condition of the skip: what the mask shows any key of must be computed"},
    {"cp.skip_block", "skipped-step", "{Ranks} never see{s} one block of keys and values, though it comes by; the others are merged as they must be: {first}",
     "look at the bounds of the loop over ring steps, and at what skips one of them"},
    {"cp.skip_block", NULL, "{Ranks} leave{s} out other blocks than those that the mask hides whole: {first}",
     "look at the condition of the skip: it must hold where every key of the block is hidden from every query, and nowhere else"},
    {"cp.forward_received", NULL, "{Ranks} pass{es} on {their} own block again and again, not the one that arrived: the neighbour's keys count several times and farther ones never",
     "look at which buffer is sent after the first step: it must be the one that was received"},
    {"cp.merge", "last-block-only", "{Ranks} keep{s} only the block that came last: each block's result is written over the one before, not merged with it",
     "merge by the log-sum-exp after every step: out = out1 e^(lse1 - lse) + out2 e^(lse2 - lse), lse = logaddexp(lse1, lse2)"},
    {"cp.merge", "not-normalised", "{Ranks} add{s} up the blocks' results without weighing them: all keys together get more than the whole softmax: {first}",
     "weigh each block's result by e^(its lse - the merged lse)"},
    {"cp.merge", "plain-average", "{Ranks} average{s} the blocks' results, whatever their log-sum-exp: right only where all blocks weigh alike",
     "look at where the log-sum-exp comes from: a kernel that returns zeros for it makes every merge an average"},
    {"cp.merge", "first-kept", "{Ranks} compute{s} the blocks that arrive, and {their} output holds {their} own alone: nothing is merged",
     "merge by the log-sum-exp after every step: out = out1 e^(lse1 - lse) + out2 e^(lse2 - lse), lse = logaddexp(lse1, lse2)"},
    {"cp.merge", NULL, "{Ranks} weigh{s} blocks of keys and values wrongly: {first}",
     "look at the log-sum-exp of each block: its base, its order of axes, its padding, its scale"},
    {"cp.lse", "lse-base", "{Ranks} merge{s} with a log-sum-exp that is not in base e: {first}", "look at which base the kernel returns: some give log2 of the sum"},
    {"cp.kv_block", NULL, "{Ranks} count{s} a block of keys and values more than once: {first}", "look at the first and the last step of the ring: P blocks, P - 1 hops"},
    {"cp.lse", "lse-scaled", "{Ranks} merge{s} with a log-sum-exp that is not in base e: {first}", "look at which base the kernel returns: some give log2 of the sum"},
    {"cp.lse", NULL, "{Ranks} round{s} the blocks' log-sum-exp before they are merged: {first}", "keep the log-sum-exp in fp32, whatever the activations are in"},
    {"cp.accumulate", NULL, "{Ranks} keep{s} the running output in too few bits between blocks: {first}", "accumulate the output in fp32 and round it once, at the end"},
    {"cp.out_init", NULL, "{Ranks} merge{s} into memory that was not empty: {first}", "begin with output 0 and log-sum-exp -inf"},
    {"cp.kv_hop", "not-arrived", "{Ranks} compute{s} on keys and values that never arrived: {first}",
     "look at whether the receive is waited for before the block is used, and at what buffer it goes to"},
    {"cp.kv_hop", "other-block", "{Ranks} take{s} a block of keys and values for another one's: {first}", "look at which rank a block is received from, and at the order of rows within it"},
    {"cp.dq", NULL, "The sum of dq over the blocks is not what its parts make on {ranks}: {first}", "add dq in fp32 over the ring's steps, and round it once"},
    {"cp.softmax_scale", NULL, "{Ranks} scale{s} scores wrongly: {first}", "look at the softmax scale that the kernel is given: 1 / sqrt(head_dim), once"},
    {"cp.dkv_home", NULL, "Gradients of keys and values end one rank in front of the one that holds the keys on {ranks}; dq is right: {first}",
     "count the hops of dK and dV: they go one hop farther than the blocks themselves, P in all, unless the backward begins with the block that came last"},
    {"cp.dkv_direction", NULL, "Gradients of keys and values go round the other way than their blocks on {ranks}; dq is right: {first}",
     "send dK and dV the way that K and V go"},
    {"cp.delta", NULL, "The gradient of scores on {ranks} lacks the row's sum of output times its gradient; dv is right, dq and dk are not: {first}",
     "look at delta = sum(out * d_out), of the whole row's output"},
    {"cp.backward_stats", NULL, "{Ranks} make{s} gradients from a block's own statistics and not the whole rows': {first}",
     "give every block's backward the merged output and log-sum-exp"},
    {"cp.dq_step", NULL, "A block's part of dq is not added on {ranks}: {first}", "look at the sum of dq over ring steps"},
    {"cp.mask_passed", "masked-too-much", "Attention on {ranks} hides keys that nothing masks: {first}", "look at the causal flag on its way to the kernel"},
    {"cp.mask_passed", NULL, "The causal mask does not reach the kernel on {ranks}: {first}", "look at what the call passes on: a flag that only gates the skip leaves the blocks unmasked"},
    {"cp.diagonal_mask", NULL, "A rank's own block is not masked on {ranks}: {first}", "only the own block needs the causal mask in a contiguous layout: step 0"},
    {"cp.window_passed", NULL, "The window does not reach the kernel on {ranks}: {first}", "look at what the call passes on: an argument that is taken and dropped is not an error"},
    {"cp.documents_passed", NULL, "Documents' borders do not reach the kernel on {ranks}: {first}", "look at how cumulative lengths are cut over the ranks"},
    {"attention.mask", NULL, "Attention in {unit} sees keys that it must not see: {first}",
     "look at the causal and document masks, and at what they are made from"},
    {NULL, "batch-dependent", "What {unit} computes for a sequence depends on the others in its micro-batch: {first}",
     "look for a reshape or an index that is right for one sequence only, and for statistics over the batch"},
    {NULL, "leaks", "Positions of {unit} see what they must not see: {first}",
     "look for a reshape or an index that mixes positions or sequences, and at the masks"},
    {"dropout.generator", NULL, "{Ranks} draw{s} dropout masks that come later in their streams than those of the ranks that hold the same: {first}",
     "look for what else draws from the generator that tensor-parallel ranks share: data loading, initial values, sampling"},
    {"dropout.sequence", "same-stream", "{Ranks} drop{s} the same elements as data rank 0, for other sequences: {first}",
     "look at what the generator is seeded by: it must be another on each rank that holds other data"},
    {"dropout.sequence", NULL, "{Ranks} draw{s} dropout masks from streams that are not due to {their} sequences: {first}",
     "look at what the generator is seeded by, and at who else draws from it"},
    {"recompute.restore_rng", NULL,
     "{Ranks} compute{s} {unit} again in the backward with new dropout masks, so gradients belong to another forward than the loss: {first}",
     "look at the state of the random generators around the recomputation: saved before the forward, restored for its second run, and put "
     "back after it (preserve_rng_state)"},
    {"recompute.reselect", NULL,
     "The router of {unit} on {ranks} chooses again in the recomputation, and otherwise, so gradients go to experts that the forward did not use: {first}",
     "keep the forward's choice for the recomputation, or break ties between equal scores by the same rule in both"},
    {"recompute.input", NULL, "What {unit} on {ranks} gives is another thing when it is computed again for the backward: {first}",
     "look at the kept input of this layer: who writes to its memory after the forward, and what else the forward reads"},
    {"moe.score_axis", NULL, "The router's softmax in {unit} goes over the tokens, not over the experts: {first}",
     "look at the dim of the softmax: the logits are [tokens, experts], and the scores of a token sum to 1"},
    {"moe.scores", "rounded", "The router of {unit} keeps its scores in too few bits, so that they tie: {first}",
     "keep logits, scores and the selection bias in fp32, whatever the layer around computes in"},
    {"moe.scores", "altered", "The router's scores in {unit} are not what its logits make them: {first}", "look at the router's score function"},
    {"moe.tie", NULL, "Tokens go to other experts of {unit} than their scores say: {first}",
     "look at the top-k: a stable one, ties to the lowest expert, and the same one on every path"},
    {"moe.choice_bias", NULL, "The router of {unit} chooses without the selection bias: {first}",
     "add the bias to the scores that experts are chosen by; look at whether it was loaded, and under which name"},
    {"moe.combine_scores", NULL, "The selection bias of {unit} leaks into the weights: {first}",
     "gather the weights from the scores without the bias; the bias is for the choice alone"},
    {"moe.normalize_axis", NULL, "Weights in {unit} are normalized over the tokens: {first}", "look at the dim of the sum that weights are divided by"},
    {"moe.normalize_order", NULL, "Weights in {unit} are normalized before the drop: {first}",
     "normalize after pairs without room are masked, as model.moe.normalize_after_drop says"},
    {"moe.routed_scaling", "altered", "The weights of the chosen experts in {unit} are not what their scores make them: {first}",
     "look at the normalization of the weights and the factor behind it"},
    {"moe.capacity_top_k", NULL, "Experts of {unit} keep another number of tokens than their capacity: {first}",
     "capacity = ceil(tokens * top_k / experts * capacity_factor), of the tokens of the micro-batch"},
    {"moe.drop_policy", NULL, "Full experts of {unit} keep other tokens than the policy says: {first}",
     "look at how the policy's name is read: an unknown one must be refused, not fall back"},
    {"moe.slot_order", NULL, "Full experts of {unit} keep all first choices before any second one: {first}",
     "count an expert's pairs along the tokens, all choices of a token together"},
    {"moe.locations", NULL, "Tokens of {unit} that have room get no row: {first}", "number an expert's rows after the drop, not before"},
    {"moe.count_padding", NULL, "The counts behind the selection bias of {unit} are not its tokens': {first}",
     "mask padding for every expert, count each micro-batch once, and reset the counts after the step"},
    {"moe.counts", NULL, "The counts behind the selection bias of {unit} are rounded: {first}", "add counts in integers, or in fp32"},
    {"moe.count_again", NULL, "Recomputations in {unit} count their tokens again behind the selection bias: {first}",
     "count where gradients are on, in the one of the two forwards that has a backward, or undo the other's"},
    {"moe.aux_score", NULL, "The balancing loss of {unit} is not what the logits make it: {first}",
     "the balancing loss uses the router's own score function, divided by its row sum where that is a sigmoid"},
    {"moe.aux_choice", NULL, "The balancing loss of {unit} counts another choice than its own: {first}",
     "count the top_k of the plain scores: no bias, nothing dropped, no padding"},
    {"moe.aux_top_k", NULL, "The balancing loss of {unit} misses a factor: {first}", "divide by top_k: the counts of a token sum to it"},
    {"moe.token_index", NULL, "Experts of {unit} read other tokens than were routed to them: {first}",
     "look at how [sequence, position] becomes one token number: a formula that is right for one sequence only"},
    {"moe.dispatch", NULL, "What experts of {unit} read is not their tokens: {first}", "look at the gather in front of the experts, and at its buffer"},
    {"moe.expert_rows", NULL, "Rows of {unit} are computed by other experts than were chosen: {first}",
     "look at the offsets of the grouped product: exclusive sums of the counts, the first 0"},
    {"moe.expert_bias", NULL, "Experts of {unit} give another output for the same row: {first}",
     "look inside the experts: their output bias is multiplied by the token's weight like the rest"},
    {"moe.unpermute", NULL, "Experts' outputs in {unit} go back to other tokens: {first}", "put them back by the inverse of the map that sorted them"},
    {"moe.combine", NULL, "What a token of {unit} gets is not the weighed sum of its experts' outputs: {first}", "look at the scatter behind the experts"},
    {"moe.gate_gradient", NULL, "The router of {unit} is given another gradient than the experts' outputs make: {first}",
     "look for a detach, or a gather without a backward, between the weights and the combination"},
    {"moe.aux", NULL, "The auxiliary losses of {unit} on {ranks} do not reach the router: {first}",
     "look at how auxiliary losses get into the backward on stages that have no main loss"},
    {"moe.aux_scale", NULL, "The auxiliary losses' gradient in {unit} has the wrong scale: {first}",
     "their gradient has the main loss' scale: divided by the micro-batches where that is, times the tokens where it is not"},
    {"init", NULL, "{Ranks} begin{s} with other values than the seed gives: {first}",
     "look at where the seed is set: before the model is made, the same on every rank; or broadcast the values once"},
    {"ep.expert_order", NULL, "{Ranks} read{s} experts' parameters in the string order of their names: {first}",
     "take an expert's number out of its name before sorting: as strings 10 comes before 2"},
    {"ep.rank", "past-end", "{Ranks} look{s} for experts behind the last one: {first}",
     "the place in the expert-parallel group is the rank within that group, not the global rank over tp: take it modulo ep"},
    {"ep.rank", NULL, "{Ranks} hold{s} the experts of another place in the expert-parallel group: {first}",
     "look at where the expert-parallel rank is computed, and what it falls back to where another parallelism is off"},
    {"ep.reduce_grad", NULL, "{Ranks} reduce{s} experts' gradients otherwise than over the ranks with the same experts: {first}",
     "look at the group of this reduction: experts have a data-parallel group of their own, dp / ep ranks"},
    {"ep.expert_grad_divisor", NULL, "{Ranks} give{s} experts' gradients {ratio} times the weight that is due: {first}",
     "divide by all data ranks, though fewer are summed over: each expert has seen the tokens of its whole expert-parallel group"},
    {"ep.weight_gradient", NULL, "{Ranks} never compute{s} a deferred weight gradient of experts: {first}",
     "look at the queue of deferred weight gradients: it must be empty before the reduction, after the last micro-batch too"},
    {"ep.count_reduce", NULL, "{Ranks} move{s} the selection bias by counts that are not those of all data ranks: {first}",
     "sum the counts over every axis that shards tokens before the sign is taken"},
    {"tp.head_norm_grad", NULL, "{Ranks} {do} not sum the gradient of the norms of heads in {unit} over tp: {first}",
     "sum the gradient of every parameter that is whole on all tp ranks and sees the heads of one, sequence parallelism or not"},
    {"moe.update_bias", NULL, "{Ranks} {do} not move the selection bias of {unit}: {first}",
     "look at the loop over layers: a layer without experts must be passed over, not end it"},
    {"moe.bias", NULL, "The selection bias of {unit} is not kept as it was computed: {first}",
     "keep the bias in fp32 and out of the cast of the model: small steps are lost in bf16"},
    {"moe.padding_rows", NULL, "Experts' weights in {unit} get gradients from memory that no token was written to: {first}",
     "zero the rows behind each expert's own, or leave them out of the product"},
    {"moe.empty_expert", NULL, "{Ranks} pass over parameters of experts that got no token: {first}",
     "give an expert without rows a gradient of zeros: the others' ranks update their shards of it"},
    {"layer.forward", "split-attention",
     "The attention of {unit} is split over context-parallel ranks, and its output is the first that is wrong on {ranks}, behind queries, keys and values "
     "that are right: {first}",
     "look at what the members of cp do for each other here: the passing on or exchange of blocks, their log-sum-exp, how they are masked and merged; the view behind it is "
     "not reached yet"},
    {"layer.forward", NULL,
     "The output of {unit} on {ranks} is wrong in step {step}, {mb}, though its input and parameters agree with the "
     "standalone run",
     "look at the forward of this layer: what it reads beside its input and parameters"},
    {"loss.token_count_reduce", NULL, "{Ranks} {do} not know the number of valid tokens of the whole step: {first}",
     "look at the all-reduce of the token count: over all data ranks, a sum, before the first micro-batch"},
    {"loss.denominator", "N/N_all",
     "{Ranks} divide{s} the summed loss by all positions, padding and ignored ones too: every token weighs {ratio} of "
     "what is due",
     "look at the count behind the denominator: it must leave out what the loss ignores"},
    {"loss.denominator", "N/N_unshifted",
     "{Ranks} count{s} the labels before they are shifted, so that the last token of each document counts too: every "
     "token weighs {ratio} of what is due",
     "look at the count behind the denominator: count targets that the loss uses, after the shift"},
    {"loss.denominator", NULL,
     "{Ranks} divide{s} the summed loss by another number than {denominator}: every token weighs "
     "{ratio} of what is due",
     "look at the denominator of the loss; 'hpsim explain loss SCENARIO' shows every factor"},
    {"pp.loss.scale", "N/(n*M*D)",
     "On {ranks} the loss is a mean of the micro-batches' own means: a token weighs {ratio} of what is due, so the "
     "fewer valid tokens its micro-batch has, the more it weighs",
     "'hpsim explain loss SCENARIO' shows the weights; divide each micro-batch's summed loss by the valid tokens of "
     "the whole step instead"},
    {"pp.loss.scale", "N/(n_rank*D)",
     "On {ranks} each data rank divides by its own valid tokens: a token weighs {ratio} of what is due",
     "'hpsim explain loss SCENARIO' shows the weights; all-reduce the token count over the data ranks before dividing"},
    {"pp.loss.scale", "-1", "On {ranks} the loss of {mb} is negated: its gradient pushes the wrong way",
     "look at the seed that backward is started with"},
    {"pp.loss.scale", "0", "On {ranks} the loss of {mb} is multiplied by 0: it contributes nothing",
     "look at which loss backward is called on"},
    {"pp.loss.scale", NULL,
     "On {ranks} the loss of {mb} is multiplied by {pattern} beside {weight}: each token's weight is {ratio} {relative}",
     "'hpsim explain loss SCENARIO' shows every factor; look where the schedule divides the loss by the number of "
     "micro-batches"},
    {"dp.loss.scale", "N/(n_rank*D)",
     "On {ranks} the data ranks' own means are averaged: a token weighs {ratio} of what is due, so the fewer valid tokens "
     "its data rank has, the more it weighs",
     "all-reduce the token count over the data ranks before dividing; 'hpsim explain loss SCENARIO' shows the weights"},
    {"dp.loss.scale", NULL,
     "On {ranks} the loss does not make up for the reduction over data ranks: a token weighs {ratio} of what is due",
     "look at what multiplies the loss by the data ranks, or leaves it, and at what the gradients' reduction divides by"},
    {"loss.report", "0", "{Ranks} leave{s} the loss of {mb} out of the loss that is reported in step {step}",
     "look at which micro-batches' losses are added up for the print"},
    {"loss.report", NULL,
     "{Ranks} take{s} the loss of {mb} into the reported loss of step {step} with {ratio} of its due factor; gradients are "
     "not concerned",
     "look at what divides the loss that is printed"},
    {"loss.report_broadcast", NULL, "{Ranks} print{s} another loss than the last stage in step {step}: {first}",
     "look at the broadcast of the printed loss: its format and its root"},
    {"metrics.loss", NULL,
     "The loss that {ranks} print{s} in step {step} is {ratio} of the reduced one; gradients are not concerned",
     "look at what divides the loss between its reduction and the print"},
    {"loss.report_reduce", NULL,
     "The loss that {ranks} report{s} in step {step} is {ratio} of {printed}; gradients are not "
     "concerned",
     "look at the reduction of the printed loss: over which ranks, and whether stages without a loss are counted"},
    {"pp.send_grad", NULL,
     "{Ranks} go{es} on in backward with a gradient that is not the one the next stage sent: {first}",
     "look at the receive of the output gradient on this stage: its buffer, its tag, and whether it is waited for"},
    {"dp.grad_buffer", NULL, "{Ranks} add{s} gradients of step {step} to a buffer that is not empty: {first}",
     "look at what used the gradient's memory in between: gathered parameters, a larger bucket; it must be zeroed after"},
    {"layer.backward", NULL,
     "The input gradient of {unit} on {ranks} is wrong in step {step}, {mb}, though its output gradient, input and "
     "parameters agree",
     "look at the backward of this layer; a numeric derivative of it alone would show the same"},
    {"layer.weight_gradient", NULL,
     "The weight gradient of {unit} is wrong in step {step} though its inputs, output gradients and all weights agree: "
     "{first}",
     "look at the weight gradient of this layer, and at what else writes to its buffer"},
    {"dp.zero_grad", NULL, "{Ranks} zero{es} {their} gradient before each micro-batch of step {step}: {first}",
     "call zero_grad once a step, before the first micro-batch"},
    {"dp.grad.add", NULL, "{Ranks} write{s} each micro-batch's gradient over that of the ones before in step {step}: {first}",
     "look at how a micro-batch's gradient gets into the accumulator: it must be added from the second one on"},
    {"dp.reduce_source", NULL, "{Ranks} reduce{s} the last micro-batch's narrow gradient instead of the accumulator in step {step}: {first}",
     "look at which buffer the reduction is given: main_grad, not grad"},
    {"pp.grad.accumulate", NULL,
     "{Ranks} scale{s} the gradient accumulated so far after each micro-batch of step {step}, by {ratio}: the earlier a "
     "micro-batch, the less it weighs",
     "divide each micro-batch's loss once, before its backward, or the whole gradient once at the end"},
    {"dp.grad.accumulate", NULL,
     "{Ranks} scale{s} the reduced gradient so far after each micro-batch of step {step}, by {ratio}: the earlier a "
     "micro-batch, the less it weighs",
     "divide what a reduction gives once, before it is added to the accumulator"},
    {"dp.grad.scale", NULL,
     "{Ranks} scale{s} {their} reduced gradients in step {step} by a factor that is not due: {first}",
     "look at what divides gradients beside the reduction: an axis that does not multiply the data, a loss scale that was "
     "never applied"},
    {"pp.grad_scale", NULL,
     "{Ranks} scale{s} {their} gradients after the last reduction by the wrong number: they are {ratio} of what is due",
     "look at what divides gradients at the end of the step: PyTorch's scale_grads, or 1/max(N, 1) over the tokens"},
    {"pp.grad.clear", "missing-microbatch",
     "{Ranks} clear{s} the gradient between micro-batches: some of them never reach a reduction: {first}",
     "look for the call that sets gradients to none or zero inside the loop over micro-batches"},
    {"pp.grad.clear", NULL, "{Ranks} {do} not empty the gradient after it was reduced: {first}",
     "look where the accumulator is zeroed after its reduction, at the last micro-batch too"},
    {"dp.grad.reset", NULL, "{Ranks} reduce{s} what was reduced already once more in step {step}: {first}",
     "look at where the accumulator is emptied between two reductions of a step"},
    {"ddp.hooks", NULL, "{Ranks} run{s} a backward in step {step} that no reduction is hooked to: {first}",
     "call the wrapped model, not the module inside: the hooks are prepared in the wrapper's forward"},
    {"ddp.ready", NULL, "{Ranks} keep{s} gradients whose buckets wait for a parameter that nothing used in step {step}: {first}",
     "let the graph be searched for unused parameters (find_unused_parameters), or use them, or take them out of training"},
    {"dp.sync_now", NULL, "{Ranks} launch{es} {their} gradient reduction after the wrong micro-batch in step {step}: {first}",
     "look at no_sync: it must end before the forward of the last micro-batch"},
    {"dp.bucket", NULL, "Part of a bucket does not come out of its reduction as it must on {ranks} in step {step}: {first}",
     "look at where buckets begin and end: the last elements, a parameter as large as a bucket, the padding"},
    {"dp.finite_check", NULL, "{Ranks} say{s} of {their} own gradient what holds of the sum over all ranks in step {step}: {first}",
     "look whether a gradient is finite before it is reduced: behind the reduction all ranks have it"},
    {"hsdp.accumulate", NULL, "{Ranks} sum{s} only the last micro-batch over the replicas in step {step}: {first}",
     "add what earlier micro-batches' reduce-scatters gave before the all-reduce over replicas"},
    {"hsdp.replicate", NULL, "{Ranks} never sum{s} {their} shards' gradients over the replicas in step {step}: {first}",
     "look at the condition in front of the all-reduce: a shard group of one still has replicas"},
    {"hsdp.grad_divisor", NULL, "{Ranks} divide{s} the sum over replicas once more in step {step}: {first}",
     "apply one divisor to the two reductions together"},
    {"optimizer.gradients", NULL,
     "The optimizer of {ranks} takes the tied embedding's gradient before both uses are summed: {first}",
     "copy gradients to the master ones after the last reduction, that of the tied embedding"},
    {"fsdp.sync_now", "never", "{Ranks} never reduce{s} {their} gradients over the data ranks in step {step}: {first}",
     "look at the switch that tells a stage's units that this backward is the last: it does not reach them"},
    {"fsdp.sync_now", NULL, "{Ranks} reduce{s} gradients after the wrong micro-batch in step {step}: {first}",
     "look at how the last micro-batch is recognised: count backwards, do not compare an index"},
    {"fsdp.reduce_grad", NULL,
     "The reduction of gradients over the data ranks goes wrong on {ranks} in step {step}: {first}",
     "look at this reduction: its group, its operation, its buffer, and whether it is waited for"},
    {"dp.all_reduce_grad", NULL,
     "The reduction of gradients over the data ranks goes wrong on {ranks} in step {step}: {first}",
     "look at this reduction: its group, its operation, its buffer, and whether it is waited for"},
    {"hsdp.replicate_reduce", NULL,
     "The sum of the shards' gradients over their replicas goes wrong on {ranks} in step {step}: {first}",
     "look at the all-reduce over replicas: its group, its operation, its buffer, and what is added before it and after"},
    {"fsdp.grad_divisor", NULL,
     "{Ranks} divide{s} the reduced gradient of {unit} by the wrong number: it is {ratio} of what is due",
     "look at whether an averaging reduction meets a loss that already carries 1/N, or both divide"},
    {"pp.grad.flush", NULL,
     "{Ranks} end{s} the backward of step {step} without waiting for its last gradient reductions: {first}",
     "look at the end of the stage's backward: every outstanding reduction must be waited for and added before the "
     "optimizer"},
    {"tied.grad_reduce", "one-use",
     "{Ranks} update{s} {their} copy of the tied embedding without the other copy's gradient: {first}",
     "look at the all-reduce between first and last stage: it must act on the parameters that the optimizer updates"},
    {"tied.grad_reduce", NULL,
     "{Ranks} update{s} {their} copy of the tied embedding with another sum than that of both copies' gradients: {first}",
     "look at the all-reduce between first and last stage: it must act on the parameters that the optimizer updates"},
    {"clip.parameters", NULL, "The norm of {ranks} leaves out gradients in step {step}: {first}",
     "look at the list that the norm goes through: a generator is empty the second time"},
    {"clip.gradient", NULL, "The norm of {ranks} reads another buffer than the gradient that is clipped: {first}",
     "look at which attribute the norm reads: grad, main_grad or decoupled_grad"},
    {"clip.squares", NULL, "The norm of {ranks} counts the same gradients more than once in step {step}: {first}",
     "look at which ranks count a parameter that several hold: one of them must"},
    {"clip.empty_shard", NULL, "The norm of {ranks} takes something from shards that hold nothing in step {step}: {first}",
     "give the largest magnitude of no elements its identity, 0"},
    {"clip.group", NULL, "The norm of {ranks} is summed over the wrong ranks in step {step}: {first}",
     "look at the group of the norm's reduction: shards and stages of one copy of the model"},
    {"clip.norm_reduce", "per-stage",
     "{Ranks} take{s} the norm of {their} own pipeline stage for the whole: each stage clips with its own coefficient",
     "look at the group of the norm's reduction: it must hold the pipeline stages too"},
    {"clip.norm_reduce", NULL, "The gradient norm on {ranks} is not that of all gradients in step {step}: {first}",
     "look at the reduction of the norm: which ranks, and whether shared parameters count once"},
    {"clip.coefficient", NULL, "{Ranks} clip{s} with a coefficient that does not follow from the norm: {first}",
     "look at the formula min(1, max_norm / (norm + 1e-6))"},
    {"optimizer.owns", NULL, "{Ranks} {do} not update each parameter exactly once in step {step}: {first}",
     "look at the list of parameters of each rank's optimizer"},
    {"optimizer.entries", NULL, "{Ranks} update{s} parameters more than once in step {step}: {first}",
     "look at the map of owners: a range stands in it more than once"},
    {"optimizer.no_gradient", NULL, "{Ranks} update{s} parameters that nothing used in step {step}: {first}",
     "leave a gradient none where no rank used its parameter: with zeros, weight decay and momentum act"},
    {"optimizer.update", NULL,
     "Parameters on {ranks} differ after the update of step {step} though gradients, norm and values before agree: "
     "{first}",
     "look at the optimizer: its state, its hyper-parameters per group, the format it computes in"},
    {"ep.dispatch", NULL, "{first}",
     "look at the sizes and offsets that rows are sent with: in elements of the format that moves, in the order of the ranks that they go to"},
    {"ep.map", NULL, "{first}",
     "look at the map's memory: what an earlier use left behind its own rows must be cleared, or its length sent with it"},
    {"ep.index_bits", NULL, "{first}",
     "look at the integers that say which row an expert reads: 32 bits at least, and no narrowing on the way"},
    {"ep.empty_slots", NULL, "{first}",
     "look at where each expert's rows begin: the exclusive sums of the padded counts, an expert without rows none"},
    {"ep.token_share", NULL, "{first}",
     "look at which tp ranks send a token that they all hold: one of them, each its own run"},
    {"ep.coordinate", NULL, "{first}",
     "look at which coordinate an expert's rank is found by: the place in the expert-parallel group, not in tp's"},
    {"ep.restore_order", NULL, "{first}",
     "sort results back by counts [expert][rank]: the transpose of those that rows came by"},
    {"ep.combine", NULL, "{first}",
     "look at where the experts' parts come together: an all-reduce or reduce-scatter over the ranks that share the experts, or the all-to-all back"},
    {"ep.output_complete", NULL, "{first}",
     "look for a sum over ranks behind the experts' output: their combination was the last one"},
    {"ep.shared_once", NULL, "{first}",
     "add the shared expert's output behind the sum over ranks, not in front of it"},
    {"ep.combine_grad", NULL, "{first}",
     "look at the backward of the combination: each result's gradient goes to the rank of its expert"},
    {"ep.gate_grad", NULL, "{first}",
     "sum the weights' gradients over the ranks that share the experts: each has those of its own experts, and zeros"},
    {"ep.grad_splits", NULL, "{first}",
     "swap what was sent and received: the gradient of rows goes back by the sizes in which they came"},
    {"ep.dispatch_grad", NULL, "{first}",
     "look at who takes part in the way back of the gradients: all ranks, those without a row too"},
    {"moe.router_grad", NULL, "{first}",
     "look at which parameters are summed over tp at the end of a step: the router sees a slice of the sequence too"},
    {"tp.vocab_range", NULL, "{first}",
     "look at which rows of the embedding a rank answers for: from its first one on, the end excluded"},
    {"tp.cut_order", NULL, "{first}",
     "look at how a fused matrix is cut: each rank needs its heads of each part, not a run of rows of the whole"},
    {"tp.adapter_placement", NULL, "{first}",
     "place the adapter as what every tp rank has whole: its gradient is then reduced as a whole parameter's"},
    {"tp.row_reduce", NULL, "{first}",
     "look at the all-reduce or reduce-scatter behind the row-parallel matrix: what leaves it is a part until then"},
    {"tp.bias", NULL, "{first}",
     "add a row-parallel matrix' bias behind the sum, once"},
    {"tp.bias_gradient", NULL, "{first}",
     "take the gradient of the whole bias: a rank that adds a part of it gets that part of its gradient alone"},
    {"tp.input_grad_reduce", NULL, "{first}",
     "look at the backward in front of the column-parallel matrix: the gradient of its input is summed over tp"},
    {"tp.loss_reduce", NULL, "{first}",
     "look at the vocabulary-parallel loss: sum of exponentials and the target's logit are sums over tp"},
    {"tp.loss_gradient", NULL, "{first}",
     "look at the backward of the vocabulary-parallel loss: a collective outside of autograd has none"},
    {"tp.loss_repeats", NULL, "{first}",
     "start the backward of the one loss that tp ranks hold together once, or divide by their number"},
    {"tp.tag", NULL, "{first}",
     "look at how parameters are marked: one that every tp rank has whole counts once in the norm, and is summed where slices made its gradient"},
    {"sp.slice_end", NULL, "{first}",
     "take a sequence length that tp divides, or pad it"},
    {"sp.gather_backward", NULL, "{first}",
     "look at what the gather's backward does: reduce-scatter, where each rank's matrix made a part of the gradient"},
    {"sp.grad", NULL, "{first}",
     "mark parameters that see a slice of the sequence, and sum their gradients over tp at the end of a step"},
    {"sp.grad_divisor", NULL, "{first}",
     "sum those gradients, do not average: each rank's part is of other tokens"},
};

/* Where the component is not the site's own. */
static const struct words of_component[] = {
    {"hardware", NULL,
     "In step {step} one call or one micro-batch of many goes wrong on {ranks} ({unit}), once, after a step in which the "
     "same was right: {first}",
     "run the same step again from the same state, on the same devices and on others; a fault of the program comes again"},
    {"collectives", NULL,
     "{Ranks} get{s} from a collective call what its operation does not give, though all members call alike and what "
     "goes in is right: {first}",
     "look at the collective itself: its algorithm, its layout of buffers, in place or not, how it divides and rounds"},
};

/* Where no finding names a site: what the comparison supports, and no more. */
static const struct words of_guess[] = {
    {"layer.forward", NULL, "The loss of step {step} differs, and activations before it: {first}. The checks that ran do not tell where it begins",
     "run all checks (without --checks): oracle with row-identity and version names the first activation that differs"},
    {"pp.loss.scale", NULL,
     "The loss of step {step} differs by {ratio} though every activation that it is made of agrees: it is what the loss is "
     "summed from, divided or multiplied by, and the checks that ran do not tell which",
     "run all checks (without --checks): scale-ledger and token-weight hold each factor of the loss against what is due; "
     "'hpsim explain loss SCENARIO' shows them"},
    {"fsdp.grad_divisor", NULL,
     "The loss of step {step} agrees and every gradient is {ratio} of what it must be: one factor behind the loss, of the "
     "reduction or after it, and the checks that ran do not tell which",
     "run all checks (without --checks): scale-ledger and token-weight tell the divisor from the factors around it"},
    {"layer.weight_gradient", NULL,
     "The loss of step {step} agrees and gradients differ: {first}. The checks that ran do not tell whether backward or a "
     "reduction is wrong",
     "run all checks (without --checks): contribution and token-weight tell what went into each gradient"},
    {"optimizer.update", NULL, "Loss and gradients of step {step} agree and something behind them differs: {first}. The checks that ran do not tell where",
     "run all checks (without --checks): update-coverage and version tell who updated what"},
};

/* The same of latents, which have no loss. */
static const struct words of_latents = {"layer.forward", NULL, "Latents differ: {first}. Nothing recorded tells which part of a layer it begins in",
    "run the same attention alone, \"workload\": \"attention\" with --checks deep: influence, softmax-mass and messages tell what becomes of each block"};

static const struct words *words_of(const struct evidence *evidence, const struct diagnosis_group *group, const struct diagnosis *diagnosis)
{
    static const struct words other = {"", NULL, "{first}", "look at the place that the finding names"};
    if (group->guessed && evidence->config->workload == WORKLOAD_DENOISE) return &of_latents;
    for (size_t i = 0; group->guessed && i < sizeof of_guess / sizeof of_guess[0]; i++) {
        if (!strcmp(of_guess[i].site, group->site->name)) return &of_guess[i];
    }
    for (size_t i = 0; i < sizeof of_component / sizeof of_component[0]; i++) {
        if (!strcmp(of_component[i].site, diagnosis->component) && strcmp(group->pattern, "aliased")) return &of_component[i];
    }
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        if ((!table[i].site || !strcmp(table[i].site, group->site->name)) &&
            (!table[i].pattern || !strcmp(table[i].pattern, group->pattern)))
            return &table[i];
    }
    return &other;
}

/* "ranks 6 and 7", "ranks 0 to 11" */
static void say_ranks(const struct diagnosis *diagnosis, bool capital, char *text, size_t size)
{
    int count = diagnosis->ranks_count;
    const char *one = capital ? "Rank" : "rank";
    if (count == 0) {
        snprintf(text, size, capital ? "Ranks" : "ranks");
        return;
    }
    bool run = count > 2 && diagnosis->ranks[count - 1] - diagnosis->ranks[0] == count - 1;
    if (run) {
        snprintf(text, size, "%ss %d to %d", one, diagnosis->ranks[0], diagnosis->ranks[count - 1]);
        return;
    }
    size_t used = (size_t)snprintf(text, size, "%s%s", one, count > 1 ? "s" : "");
    for (int i = 0; i < count && used + 24 < size; i++) {
        if (i == 12 && count > 14) {
            snprintf(text + used, size - used, " and %d others", count - i);
            return;
        }
        used += (size_t)snprintf(text + used, size - used, "%s%d",
                                 i == 0           ? " "
                                 : i + 1 == count ? " and "
                                                  : ", ",
                                 diagnosis->ranks[i]);
    }
}

static bool has_letter(const char *form, const char *letter)
{
    size_t length = strlen(letter);
    for (const char *at = strstr(form, letter); at; at = strstr(at + 1, letter)) {
        bool before =
            at > form && (at[-1] == '_' || (at[-1] >= 'a' && at[-1] <= 'z') || (at[-1] >= 'A' && at[-1] <= 'Z'));
        bool behind =
            at[length] == '_' || (at[length] >= 'a' && at[length] <= 'z') || (at[length] >= 'A' && at[length] <= 'Z');
        if (!before && !behind) return true;
    }
    return false;
}

/* "1/M (M = 8)"; a number where there is no form. */
static void say_ratio(const struct evidence *evidence, const char *form, double value, int step, char *text,
                      size_t size)
{
    if (!form[0]) {
        if (isnan(value)) snprintf(text, size, "not");
        else snprintf(text, size, "%.6g", value);
        return;
    }
    struct factor_numbers n = facts_numbers(evidence->parallel, 0, step < 0 ? 0 : step, -1);
    const struct {
        const char *letter;
        double value;
    } letters[] = {{"M", n.M}, {"D", n.D}, {"P", n.P}, {"T", n.T}, {"C", n.C}, {"E", n.E}, {"D_shard", n.D_shard}, {"D_replicate", n.D_replicate},
                   {"N", n.N}, {"N_all", n.N_all}, {"N_unshifted", n.N_unshifted}};
    size_t used = (size_t)snprintf(text, size, "%s", form);
    bool open = false;
    for (size_t i = 0; i < sizeof letters / sizeof letters[0]; i++) {
        if (!has_letter(form, letters[i].letter) || used + 60 > size) continue;
        bool either = !strcmp(letters[i].letter, "D_shard") && n.D_shard == n.D_replicate; /* it may be either */
        used += (size_t)snprintf(text + used, size - used, "%s%s%s = %.15g", open ? ", " : " (", letters[i].letter,
                                 either ? " = D_replicate" : "", letters[i].value);
        open = true;
    }
    if (has_letter(form, "n") && used + 60 < size) {
        used += (size_t)snprintf(text + used, size - used, "%sn = the micro-batch's valid tokens", open ? ", " : " (");
        open = true;
    }
    if (has_letter(form, "n_rank") && used + 60 < size) {
        used +=
            (size_t)snprintf(text + used, size - used, "%sn_rank = the data rank's valid tokens", open ? ", " : " (");
        open = true;
    }
    if (open && used + 2 < size) snprintf(text + used, size - used, ")");
}

struct speaker {
    const struct evidence *evidence;
    const struct diagnosis_group *group;
    const struct diagnosis *diagnosis;
};

/* The text for one name in braces. */
static void say_name(const struct speaker *s, const char *name, size_t length, char *text, size_t size)
{
    const struct diagnosis *d = s->diagnosis;
    const struct loss_convention *convention = loss_convention_of(s->evidence->config);
    int step = d->place.step;
    bool one = d->ranks_count == 1;
    text[0] = '\0';
    if (length <= 2 && name[0] != 'm') {
        snprintf(text, size, "%s",
                 !strncmp(name, "do", length) ? (one ? "does" : "do")
                 : !one                       ? ""
                 : name[0] == 's'             ? "s"
                                              : "es");
    } else if (!strncmp(name, "their", length)) {
        snprintf(text, size, one ? "its" : "their");
    } else if (!strncmp(name, "Ranks", length)) {
        say_ranks(d, true, text, size);
    } else if (!strncmp(name, "ranks", length)) {
        say_ranks(d, false, text, size);
    } else if (!strncmp(name, "ratio", length)) {
        double value = isnan(d->ratio_value) ? s->group->first->ratio_value : d->ratio_value; /* no form: the number */
        say_ratio(s->evidence, d->ratio, value, step, text, size);
    } else if (!strncmp(name, "pattern", length)) {
        if (strcmp(s->group->pattern, d->ratio))
            say_ratio(s->evidence, s->group->pattern, s->group->first->ratio_value, step, text, size);
        else if (d->ratio[0]) snprintf(text, size, "%s", d->ratio);
        else snprintf(text, size, "%.6g", s->group->first->ratio_value);
    } else if (!strncmp(name, "relative", length)) {
        bool of_means = strcmp(s->group->pattern, d->ratio) && d->ratio[0];
        snprintf(text, size, of_means ? "times what a mean of the micro-batches' means would give" : "of what is due");
    } else if (!strncmp(name, "weight", length)) {
        snprintf(text, size, "%s", convention->weight);
    } else if (!strncmp(name, "denominator", length)) {
        bool step_tokens = !strcmp(convention->denominator, "N");
        snprintf(text, size, "%s%s", step_tokens ? "the valid tokens of the step" : "due, ", step_tokens ? "" : convention->denominator);
    } else if (!strncmp(name, "printed", length)) {
        bool token_mean = !strcmp(convention->logged, "1/N");
        snprintf(text, size, token_mean ? "the mean over all valid tokens" : "what is due");
    } else if (!strncmp(name, "step", length)) {
        snprintf(text, size, "%d", step);
    } else if (!strncmp(name, "mb", length)) {
        int count = 0, M = s->evidence->config->layout.microbatches;
        for (int m = 0; m < M; m++) {
            for (int i = 0; i < s->group->count; i++) {
                if (s->group->findings[i]->place.microbatch != m) continue;
                count++;
                break;
            }
        }
        if (count == M || d->place.microbatch < 0) snprintf(text, size, "every micro-batch");
        else snprintf(text, size, "micro-batch %d%s", d->place.microbatch, count > 1 ? " and others" : "");
    } else if (!strncmp(name, "unit", length)) {
        const struct place *first = &s->group->first->place;
        char unit[32];
        unit_name(&s->evidence->config->model, first->unit, unit);
        bool several = false;
        for (int i = 0; i < s->group->count; i++) several = several || s->group->findings[i]->place.unit != first->unit;
        if (first->unit < 0 || (several && d->place.layer < 0)) snprintf(text, size, "every unit");
        else snprintf(text, size, "%s%s", unit, several ? " and others" : "");
    } else if (!strncmp(name, "first", length)) {
        snprintf(text, size, "%s", s->group->first->text);
    }
}

static void say(const struct speaker *s, const char *words, char *text, size_t size)
{
    size_t used = 0;
    while (*words && used + 1 < size) {
        const char *end = *words == '{' ? strchr(words, '}') : NULL;
        if (!end) {
            text[used++] = *words++;
            continue;
        }
        char part[SUMMARY_MAX];
        say_name(s, words + 1, (size_t)(end - words - 1), part, sizeof part);
        size_t length = strlen(part);
        if (length > size - 1 - used) length = size - 1 - used;
        memcpy(text + used, part, length);
        used += length;
        words = end + 1;
    }
    text[used] = '\0';
}

void diagnosis_say(const struct evidence *evidence, const struct diagnosis_group *group, struct diagnosis *diagnosis)
{
    struct speaker speaker = {evidence, group, diagnosis};
    const struct words *words = words_of(evidence, group, diagnosis);
    say(&speaker, words->summary, diagnosis->summary, sizeof diagnosis->summary - 1);
    size_t used = strlen(diagnosis->summary);
    diagnosis->summary[used] = '.';
    diagnosis->summary[used + 1] = '\0';
    say(&speaker, words->next, diagnosis->next, sizeof diagnosis->next);
}
