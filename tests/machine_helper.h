/* machine_helper: short ways to make a machine and to send integers, for the tests of sim/ machine. */
#ifndef TESTS_MACHINE_HELPER_H
#define TESTS_MACHINE_HELPER_H

#include <check.h>
#include <string.h>

#include "sim/machine.h"
#include "sim/transport.h"

static struct error error;

static inline struct machine *new_machine(int ranks, int threads, uint64_t interleave)
{
    error = (struct error){0};
    struct machine_options options = {.ranks = ranks, .threads = threads, .interleave = interleave};
    struct machine *machine = machine_new(&options, &error);
    ck_assert_ptr_nonnull(machine);
    return machine;
}

static inline struct call call_of(const char *op, const char *purpose, uint32_t group_id)
{
    return (struct call){.op = op, .algorithm = "", .purpose = purpose, .group = "pp", .group_id = group_id,
                         .format = FORMAT_FP32, .reduce = -1, .root = -1};
}

static inline struct transfer *post_bytes(struct rank *rank, int to, uint32_t tag, const void *data, size_t bytes,
                                   enum send_mode mode)
{
    struct call call = call_of("send", "test.send", 3);
    return transport_send(rank, to, tag, &call, (struct parcel){data, bytes, NULL, bytes, 0}, mode);
}

static inline struct transfer *post_receive(struct rank *rank, int from, uint32_t tag)
{
    struct call call = call_of("recv", "test.recv", 3);
    return transport_receive(rank, from, tag, &call);
}

static inline void send_int(struct rank *rank, int to, uint32_t tag, int value, enum send_mode mode)
{
    ck_assert_ptr_null(transport_wait(rank, post_bytes(rank, to, tag, &value, sizeof value, mode)));
}

static inline int take_int(struct rank *rank, struct transfer *transfer)
{
    struct message *message = transport_wait(rank, transfer);
    int value;
    ck_assert_uint_eq(message->bytes, sizeof value);
    memcpy(&value, message->data, sizeof value);
    message_release(rank, message);
    return value;
}

static inline int receive_int(struct rank *rank, int from, uint32_t tag)
{
    return take_int(rank, post_receive(rank, from, tag));
}

#endif
