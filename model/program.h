/* program: one rank's training program: its place in the mesh, its units, its actions, one step after
 * another. Split over program.c (set-up, the loop over actions), stage*.c (computing), finish.c (end of step). */
#ifndef MODEL_PROGRAM_H
#define MODEL_PROGRAM_H

#include "model/context/context.h"
#include "model/data.h"
#include "model/deviations.h"
#include "model/schedule.h"
#include "model/train.h"
#include "model/bucket.h"
#include "model/vectors.h"

/* What all ranks of a run share and only read. */
struct run {
    const struct run_config *config;
    const struct train_options *options;
    struct site_plan *plan;
    const struct ops *ops;
    struct mesh mesh;
    struct param_table params;
    struct data data;
    const struct schedule *schedule;
    void *const *initial;            /* [params] full values in the run's storage */
    struct record *record;
    struct program **programs;       /* [ranks], for freeing */
};

/* Of a layer that is computed again: its input, and a checksum of what its forward gave. */
struct kept_layer { struct tensor input; uint64_t output; };

/* A micro-batch in flight on a stage. Memory from its own arena, from forward to the end of its backward. */
struct microbatch {
    struct arena *arena;
    int64_t first_sequence;          /* due, within the step */
    int32_t *tokens, *targets, *positions, *documents; /* [T] as drawn: of the rows that this rank has, with cp some of each sequence */
    int32_t *whole_documents;        /* [batch, seq]: of the sequences; documents itself without cp */
    const int32_t *turn_positions;   /* [T]: as RoPE takes them; positions in a healthy run */
    const int32_t *slice_positions;  /* of the rows between tensor-parallel parts */
    struct token_slices tokens_of;   /* who has which; no group: not asked for yet, or nobody else */
    struct tensor input, output;     /* of the stage, [T, dim]; the first stage has no input */
    struct tensor output_grad, input_grad;             /* each with probe_count numbers behind */
    void *output_probes, *input_probes;
    struct ledger grad_ledger;       /* what output_grad holds */
    struct layer_saved **layers;     /* [units]; NULL: not yet, no longer, or dropped */
    struct kept_layer *kept;         /* [units], with recompute full */
    struct head_saved *head;
    struct tensor token_loss, token_weight;
    double seed;
    int cells; int64_t *cell_first;  /* of a router (model/routing.h); NULL: not asked for yet */
    double *aux_scale; bool *padding;
};


struct program {
    struct rank *rank;
    const struct run *run;
    struct rank_record *record;
    struct communicator *communicator;
    struct group *pp, *dp, *norm_group, *embedding;
    struct group *counting;          /* ranks that hold different tokens */
    struct tensor_parallel tensor_parallel; /* with tp 1: no group */
    struct tensor_parallel tokens;   /* ranks that have slices of the same sequences: cp, tp, or cp x tp; no group where there is one */
    struct context_parallel context_parallel; const struct context_layout *context_layout; /* NULL: cp 1 */
    int64_t seq;                     /* rows of each sequence that this rank has */
    struct expert_parallel expert_parallel; /* with ep 1 and etp 1: no group */
    int experts_first, experts_count; /* that it holds */
    struct ledger middle_ledger;     /* its, between the two steps of an all-to-all */
    struct unit_context context;
    int stage, data_rank;
    bool is_first, is_last, tied_apart; /* tied_apart: the head's weight is a copy on another stage */
    struct unit *units; int units_count;  /* of this stage in dataflow order, the tied copy last */
    struct action_list actions; int action;
    int step;
    struct microbatch *microbatches; /* one more than there are: what a schedule may wait for in vain (pp.schedule) */
    struct arena **arena_pool; int arena_pool_count;
    struct arena *scratch;
    struct transfer **sends; int sends_count, sends_capacity;
    struct data_counts counts;       /* of this data rank's step */
    struct factor_numbers numbers;
    double report;                   /* this data rank's part of the logged loss */
    double loss_scale; int scale_good_steps; /* what the loss is multiplied by for the sake of narrow formats; updates in a row */
    int64_t activation_bytes;
    struct { int microbatch; bool again; } drawing; /* whose forward draws, and is it a recomputation */
    struct balance *balance;         /* [units] */
    struct router_run router; struct routing_fact routing_fact; /* of the layer that runs */
};

void program_main(struct rank *rank, void *run);
void program_describe(const struct rank *rank, char *text, size_t size);
void program_free(struct program *program);

/* stage.c */
void stage_draw(struct program *p, int microbatch);
void stage_note_loss(struct program *p, int microbatch, struct microbatch *mb); /* behind the head's forward */
void stage_forward(struct program *p, int microbatch);
void stage_backward(struct program *p, int microbatch);
struct microbatch *stage_open(struct program *p, int microbatch);
void stage_close(struct program *p, int microbatch);
void stage_receive_grad_buffer(struct program *p, struct microbatch *mb);
/* recompute.c */
/* Unit i's forward has run: gives back what is not kept; `before`: the micro-batch's arena before it. */
void recompute_forward_done(struct program *p, struct microbatch *mb, int i, struct tensor x, struct tensor y, struct arena_mark before);
/* Before its backward: where nothing was kept, all of it again, from the arena. */
void recompute_layer(struct program *p, int microbatch, int i, const struct layer_context *layer, const struct tensor *weights);
void recompute_note_held(struct program *p);       /* activations that are held now */
void recompute_note_draw(void *program, const struct draw *draw);
/* adapter.c */
void adapter_forward(struct program *p, const struct microbatch *mb, const struct unit *unit, struct tensor y);
void adapter_backward(struct program *p, const struct microbatch *mb, const struct unit *unit, struct tensor dy);
/* finish.c */
void step_begin(struct program *p);
void step_finish(struct program *p);
/* second_reduction.c */
void second_reduction_replicas(struct program *p, struct unit *unit);
void second_reduction_tied(struct program *p);
/* sequence_grads.c */
void sequence_grads_sum(struct program *p);
/* capture.c: tensors for the comparison */
void capture_params(struct program *p, int step);
void capture_gradients(struct program *p);
/* loss_scale.c */
void loss_scale_begin(struct program *p);          /* of the run */
/* Divides the reduced gradients by the scale; agrees on whether anything is not finite; true: leave the update out. */
bool loss_scale_unscale(struct program *p);
void loss_scale_update(struct program *p, bool found);
/* grad_scale.c */
void grad_scale(struct program *p);
/* A factor that is always 1. */
double grad_extra_factor(struct program *p, const struct site *site, const struct unit *unit, struct where where);
void grad_accumulate(struct program *p, struct unit *unit, struct where where);
void grad_accumulate_reduced(struct program *p, struct unit *unit, struct where where);

/* Positions as facts name them: NULL where they count from 0. */
static inline const int32_t *program_facts_positions(const struct program *p, const int32_t *positions)
{
    return p->context_layout ? positions : NULL;
}

/* Positions of each sequence that this rank has between tensor-parallel parts: all, or its slice (layers/sequence_parallel.h). */
static inline int64_t program_slice_seq(const struct program *p)
{
    const struct run_config *config = p->run->config;
    return layout_slices_sequences(&config->layout) ? p->seq / config->layout.tp : p->seq;
}
struct where program_where(const struct program *p, int microbatch, int unit);
struct unit *program_unit(struct program *p, int index, int part); /* NULL: not on this stage */
void record_rows(struct program *p, int microbatch, int unit, const struct site *site, int part, struct tensor rows);
void record_sketches(struct program *p, int microbatch, int unit, enum sketch_kind kind, struct tensor activations);

#endif
