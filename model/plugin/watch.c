/* watch: see watch.h. What runs on a thread changes whenever a rank parks, so that the current slot is set anew after
 * every return from a function of hpsim. So is how numbers are rounded, and whether subnormal ones are: a shared object that was linked with
 * -ffast-math turns them off where it is loaded (gcc before 13), and what hpsim computes must not depend on it. */
#define _GNU_SOURCE
#include "model/plugin/watch.h"

#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

static _Thread_local struct watch_slot *current, *calling;
static _Thread_local int thread_number;
static watch_thread_begin *thread_begin;
static watch_in_copy *copied;
static pid_t owner;

struct watch_slot *watch_current(void)
{
    return current;
}

struct watch_slot *watch_calling(void)
{
    return calling;
}

void watch_set_thread_begin(watch_thread_begin *begin)
{
    thread_begin = begin;
}

void watch_set_in_copy(watch_in_copy *in_copy)
{
    copied = in_copy;
    owner = getpid();
}

static void look_for_copy(void)
{
    if (copied && getpid() != owner) copied();
}

static void step(struct watch_slot *slot, enum watch_place place)
{
    atomic_store(&slot->place, place);
    atomic_fetch_add(&slot->progress, 1);
}

void watch_enter(struct plugin_watch *watch, struct watch_slot *slot, const char *operation)
{
    if (!thread_number) {
        thread_number = (int)syscall(SYS_gettid);
        if (thread_begin) thread_begin();
    }
    snprintf(slot->operation, sizeof slot->operation, "%s", operation);
    slot->last[0] = 0;
    atomic_store(&slot->thread, thread_number);
    atomic_store(&watch->entered, 1);
    int used = atomic_load(&watch->slots_used), own = (int)(slot - watch->slots) + 1;
    while (used < own && !atomic_compare_exchange_weak(&watch->slots_used, &used, own)) continue;
    fegetenv(&slot->numbers);
    current = slot;
    calling = NULL;
    step(slot, WATCH_INSIDE);
}

void watch_leave(struct watch_slot *slot)
{
    look_for_copy();
    fesetenv(&slot->numbers);
    current = calling = NULL;
    step(slot, WATCH_OUTSIDE);
}

void watch_call(struct watch_slot *slot)
{
    look_for_copy();
    fesetenv(&slot->numbers);
    current = NULL;
    calling = slot;
    step(slot, WATCH_CALLING);
}

void watch_return(struct watch_slot *slot)
{
    current = slot;
    calling = NULL;
    step(slot, WATCH_INSIDE);
}
