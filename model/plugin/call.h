/* call: one call of a plug-in's attention on one rank, while it runs: what it was given, what it has started, what it took of
 * memory. Everything lies in the arena of the call that it stands for. */
#ifndef MODEL_PLUGIN_CALL_H
#define MODEL_PLUGIN_CALL_H

#include "model/plugin/plugin_internal.h"

/* Memory that the plug-in knows: with a band of known bytes in front and behind. */
struct call_block {
    const char *name;               /* "k"; "workspace" */
    char *data;
    size_t bytes;
    bool constant, freed, is_workspace;
    const void *original;           /* constant: what must still be there */
    struct call_block *next;
};

struct hpsim_transfer {
    struct transfer *transfer;      /* NULL: a deviation kept it from being posted */
    struct comm how;
    struct buffer buffer;
    bool is_send, waited;
    uint64_t checksum;              /* of what was sent */
    char text[WATCH_LAST];
    struct hpsim_transfer *next;
};

/* Messages of one direction, peer and tag so far: the next one's number is its hop. */
struct call_stream { bool is_send; int peer, tag, messages; struct call_stream *next; };

struct hpsim_call {
    const struct plugin *plugin;
    struct watch_slot *slot;
    struct rank *rank;
    struct communicator *communicator;
    struct group *group;
    struct context_call *context;   /* NULL: an algorithm of a collective */
    struct operation *operation;    /* NULL: attention */
    struct arena *arena;
    struct where where;
    const char *what;               /* "attention forward" */
    struct call_block *blocks;
    struct hpsim_transfer *transfers, **transfers_end;
    struct call_stream *streams;
    int refused;                    /* the status of what was first done against the rules since call_begin; HPSIM_OK: nothing */
    bool met_nan;                   /* something that came in was not a number */
    char note[WATCH_OPERATION + WATCH_LAST + 96]; /* for reports of a deadlock */
};

/* Notes what was done against the rules; gives the status back. */
int call_misused(struct hpsim_call *call, int status, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Around the work of a function of hpsim that the plug-in called. */
void call_begin(struct hpsim_call *call, const char *format, ...) __attribute__((format(printf, 2, 3)));
void call_end(struct hpsim_call *call);

/* call.c */
void *call_block_new(struct hpsim_call *call, const char *name, size_t bytes, const void *original);
/* May `bytes` at data be read, or written? What lies in no known block is the plug-in's own affair. */
bool call_range_fits(struct hpsim_call *call, const void *data, int64_t count, bool writes, const char *what);
void call_look_at_arrived(struct hpsim_call *call, const void *data, size_t count);
/* When the plug-in has returned: bands, constants, transfers that were not waited for. */
void call_finish(struct hpsim_call *call);

static inline enum format call_storage(const struct hpsim_call *call) { return call->context->q.storage; }
static inline size_t call_width(const struct hpsim_call *call) { return format_storage_bytes(call_storage(call)); }
struct buffer call_buffer(const struct hpsim_call *call, const void *data, size_t count, enum hpsim_wire wire);

extern const struct hpsim_api plugin_api;
int call_send(struct hpsim_call *call, int to, int tag, const void *data, int64_t count, enum hpsim_wire wire);
int call_receive(struct hpsim_call *call, int from, int tag, void *data, int64_t count, enum hpsim_wire wire);
struct hpsim_transfer *call_send_start(struct hpsim_call *call, int to, int tag, const void *data, int64_t count, enum hpsim_wire wire);
struct hpsim_transfer *call_receive_start(struct hpsim_call *call, int from, int tag, void *data, int64_t count, enum hpsim_wire wire);
int call_wait(struct hpsim_call *call, struct hpsim_transfer *transfer);
int call_all_gather(struct hpsim_call *call, const void *in, void *out, const int64_t *counts, enum hpsim_wire wire);
int call_all_to_all(struct hpsim_call *call, const void *in, void *out, int64_t count, enum hpsim_wire wire);
int call_all_to_all_uneven(struct hpsim_call *call, const void *in, const int64_t *send_counts, void *out, const int64_t *receive_counts, enum hpsim_wire wire);
int call_barrier(struct hpsim_call *call);

#endif
