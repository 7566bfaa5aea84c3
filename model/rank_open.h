/* rank_open: what a rank's program opens first, in every workload alike. */
#ifndef MODEL_RANK_OPEN_H
#define MODEL_RANK_OPEN_H

#include "model/config.h"
#include "model/context/context.h"
#include "model/record.h"
#include "model/train.h"

/* The rank's communicator, also kept in its record: with a plug-in's algorithms, those that the layout names, and watched
 * where the options say so. Freed with the record. */
struct communicator *rank_open_communicator(struct rank *rank, const struct run_config *config, const struct mesh *mesh, const struct train_options *options,
                                            struct rank_record *record);

/* Its context-parallel group, of one rank too, with what the scenario or its plug-in does there. usp: the inner groups of
 * `ulysses` neighbours ("ulysses") and the rings across them ("ring"), 2D attention of USP (arXiv 2405.07719). ledgers: the
 * caller's, may be NULL. */
struct context_parallel rank_open_context(struct rank *rank, const struct run_config *config, struct communicator *communicator, struct context_ledgers *ledgers);

/* Numbers that factors can be ratios of, where nothing but sequences is shared out: `attention` and `denoise`. */
struct factor_numbers rank_open_numbers(const struct layout *layout);

#endif
