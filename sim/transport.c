/* transport: what a rank calls to send, receive and wait.
 *
 * Posting only fills the rank's own lists; the merge between rounds (rounds.c) matches. So a rank never
 * sees anything that was posted in the same round, and it can't matter who ran first.
 *
 * Virtual time: a message arrives at (sender's time at the post) + message_cost_s(accounted bytes).
 * Waiting for a receive moves the rank to the arrival if that is later; waiting for a synchronous send
 * moves it to the time at which the receive was posted if that is later. */
#include <string.h>

#include "sim/assertion.h"
#include "sim/machine_internal.h"

static struct transfer *transfer_new(struct rank *rank, bool is_send, int peer, uint32_t tag, const struct call *call)
{
    ASSERT_MESSAGE(rank->state == RANK_RUNNING, "rank %d posts while it isn't running", rank->id);
    ASSERT_MESSAGE(peer >= 0 && peer < rank->machine->options.ranks, "rank %d has no peer %d", rank->id, peer);
    struct transfer *transfer = rank->transfer_free;
    if (transfer) {
        rank->transfer_free = transfer->next;
    } else {
        transfer = memory_alloc(sizeof *transfer);
        transfer->next_of_rank = rank->transfer_all;
        rank->transfer_all = transfer;
    }
    transfer->rank = rank;
    transfer->next = NULL;
    transfer->state = TRANSFER_POSTED;
    transfer->is_send = is_send;
    transfer->peer = peer;
    transfer->tag = tag;
    transfer->call = *call;
    transfer->block = NULL;
    transfer->posted_s = transfer->done_s = rank->time_s;
    rank->unwaited++;
    return transfer;
}

struct transfer *transport_send(struct rank *rank, int destination, uint32_t tag, const struct call *call,
                                struct parcel parcel, enum send_mode mode)
{
    struct transfer *transfer = transfer_new(rank, true, destination, tag, call);
    struct block *block = message_new(&rank->messages, parcel.bytes);
    struct message *message = &block->message;
    message->source = rank->id;
    message->destination = destination;
    message->tag = tag;
    message->tail_bytes = parcel.tail_bytes;
    message->call = *call;
    message->arrival_s = rank->time_s; /* the merge adds the cost */
    if (parcel.bytes > 0)
        memcpy(message->data, parcel.data, parcel.bytes);
    if (parcel.ledger)
        ledger_copy(&message->ledger, parcel.ledger);
    block->state = BLOCK_SENT;
    block->accounted_bytes = parcel.accounted_bytes;
    block->number = rank->sent.messages;
    block->sync = mode == SEND_SYNC ? transfer : NULL;
    if (mode == SEND_ASYNC)
        transfer->state = TRANSFER_DONE; /* may be waited for, and reused, in this very round */
    block_append(&rank->sends, block);
    rank->sent.messages++;
    rank->sent.bytes += parcel.accounted_bytes;
    return transfer;
}

struct transfer *transport_receive(struct rank *rank, int source, uint32_t tag, const struct call *call)
{
    struct transfer *transfer = transfer_new(rank, false, source, tag, call);
    transfer_append(&rank->receives, transfer);
    return transfer;
}

struct message *transport_wait(struct rank *rank, struct transfer *transfer)
{
    ASSERT_MESSAGE(rank->state == RANK_RUNNING, "rank %d waits while it isn't running", rank->id);
    ASSERT_MESSAGE(transfer->rank == rank && transfer->state != TRANSFER_FREE,
                   "rank %d waits for a transfer twice, or for another rank's", rank->id);
    if (transfer->state == TRANSFER_POSTED) {
        rank->waiting = transfer;
        rank->state = RANK_WAITING;
        coroutine_park(rank->coroutine);
        ASSERT(rank->state == RANK_RUNNING && transfer->state == TRANSFER_DONE);
    }
    if (transfer->done_s > rank->time_s)
        rank->time_s = transfer->done_s;
    struct block *block = transfer->block;
    transfer->state = TRANSFER_FREE;
    transfer->next = rank->transfer_free;
    rank->transfer_free = transfer;
    rank->unwaited--;
    return block ? &block->message : NULL;
}

int transport_unwaited(const struct rank *rank)
{
    return rank->unwaited;
}

struct transport_count transport_sent(const struct rank *rank)
{
    return rank->sent;
}
