/* schedule: what a pipeline rank does, as a list of actions.
 *
 * A schedule (one line in schedules.def, one file in schedules/) gives the order of computing; lowering
 * adds the sends and receives. Source of the orders: spec of each file. */
#ifndef MODEL_SCHEDULE_H
#define MODEL_SCHEDULE_H

#include <stdbool.h>
#include "sim/site.h"

enum action_kind { ACTION_FORWARD, ACTION_BACKWARD, ACTION_SEND_F, ACTION_RECV_F, ACTION_SEND_B, ACTION_RECV_B };
extern const char *const action_names[]; /* as PyTorch's CSV writes them: F, B, SEND_F, ... */

struct action { enum action_kind kind; int stage, microbatch; };
struct action_list { int count, capacity; struct action *actions; };

void action_list_add(struct action_list *list, enum action_kind kind, int stage, int microbatch);
void action_list_free(struct action_list *list);

struct schedule {
    const char *name;                                   /* "1F1B", as a scenario names it */
    const char *what;
    void (*compute)(const struct schedule *schedule, int pp, int microbatches, int stage, struct action_list *ret_list); /* F and B only */
    /* micro-batches whose activations are held at once, at most */
    int (*in_flight)(const struct schedule *schedule, int pp, int microbatches, int stage);
};
int schedule_count(void);
const struct schedule *schedule_at(int i);
const struct schedule *schedule_find(const char *name); /* NULL: none */
/* The one that a run uses: the table's, or its plug-in's. */
struct run_config;
const struct schedule *schedule_of(const struct run_config *config);

/* The whole list of one stage. sync: blocking sends; of two neighbours that exchange, one sends first and
 * the other receives first. plan: pp.send_activation may turn that round; where pp.schedule does not cut the warm-up,
 * a stage that warms up with more micro-batches than there are waits for one more. */
void schedule_lower(const struct schedule *schedule, int pp, int microbatches, int stage, bool sync,
                    struct site_plan *plan, int rank, struct action_list *ret_list);

#endif
