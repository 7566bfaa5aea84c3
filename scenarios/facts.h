/* facts: looking things up in a record, and the words for places and findings. What comparison, checks and
 * diagnosis share; nothing here judges. */
#ifndef SCENARIOS_FACTS_H
#define SCENARIOS_FACTS_H

#include "model/loss_convention.h"
#include "scenarios/result.h"

/* ---- places ---- */
#define PLACE_NONE ((struct place){-1, -1, -1, -1, -1, NULL})
struct place place_at(int rank, int step, int microbatch);
struct place place_at_unit(const struct run_config *config, int rank, int step, int microbatch, int unit);
/* "layer 3", "the embedding", "the head". */
void unit_name(const struct model_config *model, int unit, char text[32]);

/* ---- findings ---- */
/* All fields "does not apply". */
struct finding finding_new(const struct site *site, struct place place);
void finding_pattern(struct finding *finding, const char *word);
void finding_say(struct finding *finding, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- facts of a rank; NULL where there is none ---- */
const struct loss_fact *facts_loss(const struct rank_record *rank, int step, int microbatch);
const struct count_fact *facts_count(const struct rank_record *rank, int step);
const struct norm_fact *facts_norm(const struct rank_record *rank, int step);
const struct scale_fact *facts_scale(const struct rank_record *rank, int step);
const struct report_fact *facts_report(const struct rank_record *rank, int step);
const struct sample_fact *facts_sample(const struct rank_record *rank, int step, int microbatch);
const struct rank_record *facts_rank(const struct record *record, int stage, int data_rank);
/* Elements of one rank's part of a parameter, before FSDP shards it. */
int64_t facts_elements_of(const struct record *record, int param);
/* Where an element of a rank's part lies in the whole parameter. */
size_t facts_whole_element(const struct record *record, const struct tensor_fact *fact, size_t element);
int64_t facts_rows_of(const struct record *record, int param);
bool facts_is_last_stage(const struct record *record, const struct rank_record *rank);
/* The run went to its end: what is not there was not done. */
bool facts_finished(const struct record *record);

/* ---- a step's tokens, as the ranks counted them ---- */
struct step_tokens { double valid, unshifted, positions; };
struct step_tokens facts_tokens(const struct record *record, int step);
/* The letters of a factor for one micro-batch of one data rank; microbatch -1: those of the step alone. */
struct factor_numbers facts_numbers(const struct record *record, int data_rank, int step, int microbatch);
/* The letters of a micro-batch as the convention's formulas take them: as due, but with the tokens that it really held. */
struct factor_numbers facts_loss_numbers(const struct record *record, const struct rank_record *rank, const struct loss_fact *fact);
/* What multiplies every gradient after its last reduction: as due in the step; as it was for this unit on this rank. */
double facts_grad_scale_due(const struct record *record, int step);
/* What is left of the loss scale in a reduced gradient: 1 where it was taken out as it was put in. */
double facts_unscale(const struct rank_record *rank, int step);
double facts_grad_scale(const struct record *record, const struct rank_record *rank, int step, int unit);
/* N as this rank got it for that factor; as due where it took none. */
double facts_count_at_end(const struct record *record, const struct rank_record *rank, int step);
/* Did a factor at this site touch the unit's gradient on this rank in the step? */
bool facts_was_scaled(const struct rank_record *rank, const struct site *site, int step, int unit);
/* Did a decision that always falls out one way, or a range that is always whole, fall out otherwise there? Unit -1: of any. */
bool facts_was_chosen(const struct rank_record *rank, const struct site *site, int step, int unit);
/* Was a reduction of the unit's gradient (after that micro-batch; -1: any) taken over in the step of its launch, with all of its pieces? */
bool facts_was_taken(const struct rank_record *rank, int step, int unit, int microbatch);
/* What the gradient reduction divides by where nothing is wrong: D or 1. */
double facts_divisor_due(const struct run_config *config);
/* The reduction that a unit's gradient goes through: dp.all_reduce_grad, or fsdp.reduce_grad where it is scattered; ep.reduce_grad of experts. */
const struct site *facts_reduction_site(const struct run_config *config, int unit);
/* How often a data rank's gradient of a unit goes into its reduction: once, or from each of the ranks that read the same
 * sequences; what that reduction is divided by, and where. */
int facts_copies_due(const struct run_config *config, int unit);
double facts_unit_divisor_due(const struct run_config *config, int unit);
const struct site *facts_divisor_site(const struct run_config *config, int unit);
/* The first of the ranks that read the same sequences on a stage. */
bool facts_is_first_reader(const struct record *record, const struct rank_record *rank);
/* Do both put this unit's gradient into one sum? */
bool facts_shares_unit(const struct record *record, const struct rank_record *a, const struct rank_record *b, int unit);
/* Would they, were they of one stage (a tied embedding's two copies)? */
bool facts_shares_shards(const struct record *record, const struct rank_record *a, const struct rank_record *b, int unit);
/* Does a rank's own gradient of the unit, before any reduction, hold this data rank's micro-batches? Experts' those of the expert-parallel group. */
bool facts_is_source(const struct record *record, const struct rank_record *rank, int unit, int data_rank);
/* Roundoff of the storage: what weights and probes go through. Of gradients on their way: the coarsest format there. */
double facts_storage_roundoff(const struct run_config *config);
double facts_reduction_roundoff(const struct run_config *config);
/* The routers' auxiliary losses of a step: the sum over layers of the mean over micro-batches and data ranks. */
double facts_auxiliary(const struct record *record, int step);
/* Did this rank reduce the unit's gradient in the step at all? */
bool facts_was_reduced(const struct rank_record *rank, int step, int unit);
/* Was each of these reductions divided by what is due? */
bool facts_divisors_are_due(const struct record *record, const struct rank_record *rank, int step, int unit);
/* The micro-batch that holds a sequence of a step, and the first of the data ranks (with cp: of several) that hold it between them. */
struct microbatch_place { int data_rank, microbatch, row /* which of its sequences */; };
struct microbatch_place facts_place_of(const struct record *record, int sequence);
/* Rows of each sequence that a cp rank has. */
int64_t facts_rows_due(const struct run_config *config, int cp);
/* Positions of a sequence (counted over all steps) that are due to a rank, ascending, into ret [seq]; slice: to its slice over tp,
 * where there is one. Returns how many. From the data. */
int64_t facts_positions_due(const struct record *record, const struct rank_record *rank, int64_t sequence, bool slice, int32_t *ret);
/* The first sequence that a micro-batch's rank must read, by the layout alone. */
int64_t facts_sequence_due(const struct record *record, const struct rank_record *rank, const struct sample_fact *fact);
/* Are the targets of the rows that were drawn the data's? Rows that are not in the data say nothing. */
bool facts_targets_are_due(const struct sample_fact *fact, const struct data *data);
/* Were the sequences of this micro-batch those that are due, wherever they were read? */
bool facts_sample_is_due(const struct record *record, int step, int data_rank, int microbatch);

/* ---- sketches by (step, sequence, unit, kind) ---- */
struct sketch_entry { const struct sketch_fact *fact; int rank; };
struct sketch_table { int steps, sequences, units; struct sketch_entry *entries; };
struct sketch_table sketch_table_new(const struct record *record, struct arena *arena);
/* fact NULL where nothing was recorded. */
struct sketch_entry sketch_table_at(const struct sketch_table *table, int step, int sequence, int unit,
                                    enum sketch_kind kind);

#endif
