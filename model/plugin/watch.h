/* watch: what a plug-in is doing right now, in memory that another process can read when this one has ended.
 *
 * A rank has a slot; slot 0 is for calls that belong to no rank (loading, asking a schedule). Written only by the thread that
 * runs the rank. Whoever guards a run (tools/guard.c) maps the watch shared between two processes; a run that nobody guards
 * has one of its own, which nobody reads. */
#ifndef MODEL_PLUGIN_WATCH_H
#define MODEL_PLUGIN_WATCH_H

#include <fenv.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { WATCH_SLOTS = 4097, WATCH_OPERATION = 112, WATCH_LAST = 96 };
enum watch_place { WATCH_OUTSIDE, WATCH_INSIDE /* in the plug-in's own code */, WATCH_CALLING /* in a function of hpsim that it called */ };

struct watch_slot {
    atomic_uint_fast64_t progress;          /* moves at every entry, call and return */
    atomic_int place;                       /* enum watch_place */
    atomic_int thread;                      /* the kernel's number of the thread that entered; 0: none yet */
    fenv_t numbers;                         /* how hpsim rounds: what a plug-in changes there ends with its call */
    char operation[WATCH_OPERATION];        /* "attention forward (step 0, micro-batch 1, layer 2)" */
    char last[WATCH_LAST];                  /* its last call of hpsim, "receive from member 2, hop 1"; "" for none */
};

struct plugin_watch {
    char name[64], path[1024];              /* of the plug-in; "" before it is known */
    atomic_int entered;                     /* was it ever entered? */
    atomic_int slots_used;                  /* the highest, + 1 */
    struct watch_slot slots[WATCH_SLOTS];   /* 0; rank + 1 */
};

/* The slot whose plug-in code this thread runs; NULL: none. Async-signal-safe. */
struct watch_slot *watch_current(void);

/* The one that this thread was last in a call of hpsim for, where that may still go on; NULL: none. Async-signal-safe. */
struct watch_slot *watch_calling(void);

/* Around a plug-in's function. */
void watch_enter(struct plugin_watch *watch, struct watch_slot *slot, const char *operation);
void watch_leave(struct watch_slot *slot);
/* Around a function of hpsim that it calls. The text was put into slot->last before. */
void watch_call(struct watch_slot *slot);
void watch_return(struct watch_slot *slot);

/* Called once a thread before it first runs a plug-in's code: a stack for signal handlers of its own. */
typedef void watch_thread_begin(void);
void watch_set_thread_begin(watch_thread_begin *begin); /* of a process that guards; before it has threads */

/* Called where a plug-in's function comes back to hpsim in another process than the one that set this: a copy that the plug-in
 * made without fork(), of which fork's own handlers hear nothing. It must not return. */
typedef void watch_in_copy(void);
void watch_set_in_copy(watch_in_copy *in_copy); /* of a process that guards; before it has threads */

#endif
