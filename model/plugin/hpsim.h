/* hpsim.h: your own implementation under test in hpsim, and hpsim as a library.
 *
 * A plug-in is a shared object in C or C++ with one entry, hpsim_plugin(), that describes what it brings: an attention
 * over a sequence that is split over ranks, an algorithm of a collective, a pipeline schedule, a loss normalization, any
 * of them. A scenario names it ("plugin": "path.so", relative to the scenario file) and uses what it brings under its
 * names. hpsim then runs it on every virtual rank as it runs its own: the same checks, the same faults, the same
 * deadlock detection, the same reference beside it.
 *
 *     cc -std=c99 -shared -fPIC -I$(pkg-config --variable=includedir hpsim) -o mine.so mine.c
 *
 * A plug-in calls nothing of hpsim by name: what it may call comes as a table of functions (struct hpsim_api), so it is
 * linked with nothing.
 *
 * Numbers    are float or double, as the run has it (real_bytes 4 or 8), rounded already to what the run computes in;
 *            dense and row-major; counts and strides are in elements, sizes in bytes where their name says so.
 * Members    are the ranks of the group that works together, 0 .. size-1, in the order of their places.
 * Ownership  inputs are const and belong to hpsim, outputs belong to hpsim and come filled with NaN; what hpsim gives is
 *            there until the function that it was given to returns. What a plug-in describes (names, functions) must stay
 *            as long as it is loaded.
 * Threads    a function may run for several ranks at once, on several threads: no global or static variable may be
 *            written. A rank that waits is set aside in the middle of the function while others run. Functions of hpsim are
 *            called on the thread that the plug-in's function was called on. Rounding modes end with the call.
 * Output     what is printed for oneself goes to standard error: standard output may be a result.
 * Stack      1 MiB a rank. Large arrays: workspace().
 * Errors     a function of hpsim that is called against its rules does nothing, notes it (the check "plugin" fails, with
 *            rank, operation and call) and returns a negative enum hpsim_status, or NULL. A plug-in's own functions
 *            return 0, or anything else for "cannot be done".
 *
 * A crash, an endless loop or an exit() in a plug-in ends the run with its name, the rank, the operation and its last call
 * of hpsim. Endless is what makes no call and does not return for 10 seconds of processor time; HPSIM_PLUGIN_SECONDS in
 * the environment sets another number, 0 none (for a debugger: it is the child process that runs the plug-in).
 *
 * Versions: HPSIM_ABI changes where something below changes its meaning; what is only added goes to the end of a struct that
 * has a field `size`, which says how long it is for who made it. The others (hpsim_attention_method, hpsim_algorithm,
 * hpsim_action, hpsim_schedule, hpsim_loss) stay as they are within one HPSIM_ABI. */
#ifndef HPSIM_H
#define HPSIM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HPSIM_ABI 1

enum hpsim_status {
    HPSIM_OK = 0,
    HPSIM_WRONG_MEMBER = -1,    /* no such member, or the rank itself */
    HPSIM_WRONG_COUNT = -2,     /* negative, or counts that do not fit each other */
    HPSIM_WRONG_TAG = -3,       /* tags are 0 .. 65535 */
    HPSIM_WRONG_POINTER = -4,   /* NULL, or not what this function takes */
    HPSIM_WAITED_TWICE = -5,
    HPSIM_WRONG_ARGUMENT = -6
};

/* What numbers are rounded to on their way, and counted as in the traffic. */
enum hpsim_wire {
    HPSIM_WIRE_FULL = 0,        /* float or double as they are */
    HPSIM_WIRE_ACTIVATION = 1   /* the format of activations (bf16 ...): loses nothing of q, k, v and out */
};

struct hpsim_call;              /* one call of the plug-in on one rank: handed through to every function below */
struct hpsim_transfer;          /* a send or receive under way */

/* What a plug-in may call from within attention. All of them may park the rank. `tag` tells messages between the same two
 * members apart (0 .. 65535); those with one tag arrive in the order in which they were sent. */
struct hpsim_api {
    size_t size;

    /* Blocking. A send ends when its receive was posted (as NCCL's, and as MPI's of large messages), not before. */
    int (*send)(struct hpsim_call *call, int to, int tag, const void *data, int64_t count, enum hpsim_wire wire);
    int (*receive)(struct hpsim_call *call, int from, int tag, void *data, int64_t count, enum hpsim_wire wire);

    /* Started, and waited for exactly once, in any order, before the plug-in returns. Until then the data of a send
     * stays as it is, and nobody reads that of a receive (it is NaN). NULL: misuse, nothing was started. */
    struct hpsim_transfer *(*send_start)(struct hpsim_call *call, int to, int tag, const void *data, int64_t count,
                                         enum hpsim_wire wire);
    struct hpsim_transfer *(*receive_start)(struct hpsim_call *call, int from, int tag, void *data, int64_t count,
                                            enum hpsim_wire wire);
    int (*wait)(struct hpsim_call *call, struct hpsim_transfer *transfer);

    /* Of the whole group, called by all members in one order; out and in do not overlap.
     * all_gather: out = member 0's, member 1's ...; counts[size] of every member, the own one among them.
     * all_to_all: the i-th part of in goes to member i, the i-th of out comes from member i; `count` elements each, or
     * send_counts[i] and receive_counts[i]. */
    int (*all_gather)(struct hpsim_call *call, const void *in, void *out, const int64_t *counts, enum hpsim_wire wire);
    int (*all_to_all)(struct hpsim_call *call, const void *in, void *out, int64_t count, enum hpsim_wire wire);
    int (*all_to_all_uneven)(struct hpsim_call *call, const void *in, const int64_t *send_counts, void *out,
                             const int64_t *receive_counts, enum hpsim_wire wire);
    int (*barrier)(struct hpsim_call *call);

    /* Memory until the plug-in returns, 64-byte aligned, filled with NaN. hpsim frees it; workspace_free gives a block
     * back early. NULL only for 0 bytes or far too many. */
    void *(*workspace)(struct hpsim_call *call, size_t bytes);
    int (*workspace_free)(struct hpsim_call *call, void *block);

    /* The global positions of a member's rows in a sequence of the batch, ascending; ret has room for rows_of[member]. */
    int (*positions)(struct hpsim_call *call, int member, int64_t sequence, int32_t *ret_positions);
};

/* ---- attention ---- */

/* One rank's part of softmax(scale q k^T + mask) v, forward or backward. The sequence (seq positions, batch of them) is split
 * over the members: this one has `rows` rows of each, at `positions`. A query at position p sees the key at position c
 * iff (!causal or c <= p) and (window == 0 or |p - c| < window) and (documents == NULL or both belong to one document,
 * and its number is not negative). A query that sees nothing has output 0 and lse -infinity. Query head h uses key head
 * h / (heads / kv_heads). */
struct hpsim_attention {
    size_t size;
    const struct hpsim_api *api;
    struct hpsim_call *call;
    int32_t members, member;    /* of the group; this rank's place in it */
    int32_t real_bytes;         /* 4: every number below is a float; 8: a double */
    int32_t heads, kv_heads, head_dim;
    int64_t batch, rows, seq;
    const int64_t *rows_of;     /* [members]: rows of each member; they may differ, and be 0 */
    const int32_t *positions;   /* [batch, rows], ascending */
    const int32_t *documents;   /* [batch, seq] by position: number of the document; or NULL */
    int32_t causal;
    int64_t window;
    double scale;
    const void *q;              /* [batch, rows, heads, head_dim] */
    const void *k, *v;          /* [batch, rows, kv_heads, head_dim] */
    /* forward fills these; backward is given them as forward left them, rounded to the run's formats */
    void *out;                  /* as q */
    void *lse;                  /* [batch, heads, rows]: natural log of the sum of exp(score); may be left alone */
    /* backward; all of own rows, dk and dv summed over the queries of all members; NULL in forward */
    const void *d_out;          /* as q */
    void *dq, *dk, *dv;         /* as q, k, v */
};

/* What a run is about to ask for. */
struct hpsim_shape {
    size_t size;
    int32_t members, heads, kv_heads, head_dim, causal, documents /* 1: there are some */;
    int64_t batch, seq, window;
    const int64_t *rows_of;
};

struct hpsim_attention_method {
    const char *name;           /* what parallel.context.method calls it (and so does "plugin") */
    const char *what;           /* one sentence */
    int (*forward)(const struct hpsim_attention *attention);
    int (*backward)(const struct hpsim_attention *attention); /* NULL: forward only (workloads attention and denoise) */
    /* Not 0, and why: these sizes are refused before anything runs. NULL: all are taken. */
    int (*refuses)(const struct hpsim_shape *shape, char *ret_why, size_t ret_why_bytes);
};

/* ---- an algorithm of a collective ---- */

/* The data are cut into parts, one a member. In and out:
 *     all_reduce       in: this member's numbers in every part; out: every part summed over the members
 *     reduce_scatter   in: the same;                            out: part [member] summed
 *     all_gather       in: part [member];                       out: every part
 *     all_to_all       in: sources, one for each member, and part [member]; out: part i from member i
 * Numbers are moved and added by hpsim alone (in the wire's format, with their ledgers), so that a plug-in says who sends
 * what to whom and in which order it is added; it must depend on members and member and on nothing else, for it
 * is also asked beforehand, without numbers. Parts first .. first + count - 1 make one message, empty ones too. */
struct hpsim_collective {
    size_t size;
    struct hpsim_call *call;
    int32_t members, member;
    int (*send)(struct hpsim_call *call, int to, int first, int count);
    int (*send_source)(struct hpsim_call *call, int to);                      /* all_to_all: the source for member `to` */
    int (*receive)(struct hpsim_call *call, int from, int first, int count);  /* takes the place of what is there */
    int (*receive_add)(struct hpsim_call *call, int from, int first, int count); /* own + received, rounded */
};
struct hpsim_algorithm {
    const char *operation;      /* "all_reduce", "all_gather", "reduce_scatter" or "all_to_all" */
    const char *name;           /* what parallel.collectives.<operation> calls it */
    int (*run)(const struct hpsim_collective *collective);
};

/* ---- a pipeline schedule ---- */

enum hpsim_action_kind { HPSIM_FORWARD = 0, HPSIM_BACKWARD = 1 };
struct hpsim_action { int32_t kind, microbatch; };
struct hpsim_schedule {
    const char *name;           /* what parallel.pipeline.schedule calls it */
    const char *what;
    /* The order of computing on one stage: every micro-batch forward once, and later backward once. Fills ret_actions,
     * which has room for 2 x microbatches, and returns how many there are. hpsim adds sends and receives. */
    int (*order)(int stages, int microbatches, int stage, struct hpsim_action *ret_actions);
};

/* ---- a loss normalization ---- */

/* Expressions with * / ( ) and numbers of M (micro-batches), D (data ranks), n (valid tokens of a micro-batch), n_rank (of a
 * data rank's step), N (of the whole step), N_all (positions of it), n_rank_unshifted and N_unshifted (tokens that are not
 * padding), A (what the gradient reduction divides by). `hpsim explain loss` shows them at work. */
enum hpsim_combine { HPSIM_COMBINE_SUM = 0, HPSIM_COMBINE_MEAN = 1 }; /* of the data ranks' gradients */
struct hpsim_loss {
    const char *name;           /* what train.loss_normalization calls it */
    const char *what;
    const char *denominator;    /* a micro-batch's summed loss is divided by it: "n" */
    const char *scale;          /* and multiplied by this before backward: "1/M" */
    enum hpsim_combine combine;
    const char *grad_scale;     /* multiplies gradients after their last reduction: "1" */
    const char *weight;         /* what a token then weighs: "1/(n*M*D)" */
    const char *logged;         /* a summed loss times this is its part of the printed loss: "1/N" */
};

/* ---- the entry ---- */

struct hpsim_description {
    uint32_t abi;               /* HPSIM_ABI */
    uint32_t size;              /* sizeof (struct hpsim_description) */
    const char *name;           /* for reports */
    const struct hpsim_attention_method *attention; /* or NULL */
    const struct hpsim_algorithm *algorithms; int32_t algorithms_count;
    const struct hpsim_schedule *schedules; int32_t schedules_count;
    const struct hpsim_loss *losses; int32_t losses_count;
};

#if defined(__GNUC__)
#define HPSIM_EXPORT __attribute__((visibility("default")))
#else
#define HPSIM_EXPORT
#endif

/* Written by the plug-in. What it returns is a constant of the plug-in. */
HPSIM_EXPORT const struct hpsim_description *hpsim_plugin(void);

/* ---- hpsim as a library: link with libhpsim (pkg-config hpsim) ---- */

struct hpsim_run_options {
    size_t size;                /* sizeof (struct hpsim_run_options) */
    const char *const *set;     /* "path=value", as --set takes it */
    int32_t set_count;
    int32_t threads;            /* 0: 1 */
    uint64_t interleave;
    const char *checks;         /* as --checks takes it; NULL: "default" */
};

/* Runs a scenario file as `hpsim run` does. Returns its exit status: 0 as expected, 1 not as expected, 2 bad input, 70 a
 * fault of hpsim's own. *ret_json: the result as JSON (status 0 and 1), *ret_error: what was wrong (2 and 70); the other is
 * NULL. Both are text that the caller gives to hpsim_free; either pointer may be NULL. Keeps nothing between calls; several
 * threads may call it at once. A scenario with a plug-in runs in a child process. */
HPSIM_EXPORT int hpsim_run(const char *scenario, const struct hpsim_run_options *options, char **ret_json, char **ret_error);
HPSIM_EXPORT void hpsim_free(char *text);          /* accepts NULL */
HPSIM_EXPORT const char *hpsim_version(void);      /* "0.1.0"; static */

#ifdef __cplusplus
}
#endif

#endif
