/* workers: the threads of a machine and the barrier at the end of a round.
 *
 * A round takes microseconds, waking a thread takes tens of them; so a waiting side first spins, then
 * offers its core to others, and only then sleeps. Where there are fewer cores than threads nobody
 * spins. A worker whose share is empty isn't told about the round at all.
 *
 * To the worker: `epoch` changes. Back: `remaining` drops to zero. Sleeping follows one pattern on both
 * sides: the sleeper says so first and then looks again; the waker acts first and then looks whether
 * somebody sleeps. With sequentially consistent atomics one of the two must see the other. */
#include <sched.h>
#include <stdlib.h>

#include "sim/assertion.h"
#include "sim/machine_internal.h"

enum { SPINS = 20, YIELDS = 200 };

static inline void cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

static void wake(atomic_bool *asleep, uv_mutex_t *mutex, uv_cond_t *condition)
{
    if (atomic_load(asleep)) {
        uv_mutex_lock(mutex);
        uv_cond_signal(condition);
        uv_mutex_unlock(mutex);
    }
}

/* ---- the worker's side ---- */

static bool worker_pending(struct worker *worker, unsigned seen)
{
    return atomic_load(&worker->epoch) != seen;
}

static void worker_await(struct worker *worker, unsigned seen)
{
    for (int i = 0; i < worker->machine->spins; i++) {
        if (worker_pending(worker, seen))
            return;
        cpu_relax();
    }
    for (int i = 0; i < worker->machine->yields; i++) {
        if (worker_pending(worker, seen))
            return;
        sched_yield();
    }
    uv_mutex_lock(&worker->mutex);
    atomic_store(&worker->asleep, true);
    while (!worker_pending(worker, seen))
        uv_cond_wait(&worker->condition, &worker->mutex);
    atomic_store(&worker->asleep, false);
    uv_mutex_unlock(&worker->mutex);
}

static void worker_main(void *argument)
{
    struct worker *worker = argument;
    struct machine *machine = worker->machine;
    for (unsigned seen = 0;; seen++) {
        worker_await(worker, seen);
        if (atomic_load(&machine->quit))
            return;
        if (worker->jobs)
            worker_run_jobs(worker);
        else
            worker_run_ranks(worker);
        if (atomic_fetch_sub(&machine->remaining, 1) == 1)
            wake(&machine->loop_asleep, &machine->mutex, &machine->condition);
    }
}

static void worker_tell(struct worker *worker)
{
    atomic_fetch_add(&worker->epoch, 1);
    wake(&worker->asleep, &worker->mutex, &worker->condition);
}

/* ---- the loop thread's side ---- */

static void barrier_await(struct machine *machine)
{
    for (int i = 0; i < machine->spins; i++) {
        if (atomic_load(&machine->remaining) == 0)
            return;
        cpu_relax();
    }
    for (int i = 0; i < machine->yields; i++) {
        if (atomic_load(&machine->remaining) == 0)
            return;
        sched_yield();
    }
    uv_mutex_lock(&machine->mutex);
    atomic_store(&machine->loop_asleep, true);
    while (atomic_load(&machine->remaining) != 0)
        uv_cond_wait(&machine->condition, &machine->mutex);
    atomic_store(&machine->loop_asleep, false);
    uv_mutex_unlock(&machine->mutex);
}

void workers_run_round(struct machine *machine)
{
    int told = 0;
    for (int w = 1; w < machine->worker_count; w++)
        told += machine->workers[w].ready_count > 0;
    if (told > 0) {
        atomic_store(&machine->remaining, told);
        for (int w = 1; w < machine->worker_count; w++) {
            machine->workers[w].jobs = false;
            if (machine->workers[w].ready_count > 0)
                worker_tell(&machine->workers[w]);
        }
    }
    worker_run_ranks(&machine->workers[0]);
    if (told > 0)
        barrier_await(machine);
}

void workers_run_jobs(struct machine *machine, bool shared)
{
    if (shared) {
        atomic_store(&machine->remaining, machine->worker_count - 1);
        for (int w = 1; w < machine->worker_count; w++) {
            machine->workers[w].jobs = true;
            worker_tell(&machine->workers[w]);
        }
    }
    worker_run_jobs(&machine->workers[0]);
    if (shared)
        barrier_await(machine);
}

bool workers_start(struct machine *machine, struct error *error)
{
    int threads = machine->worker_count;
    bool idle_cores = uv_available_parallelism() >= (unsigned)threads;
    machine->spins = idle_cores ? SPINS : 0;
    machine->yields = YIELDS;
    for (int w = 1; w < threads; w++) {
        struct worker *worker = &machine->workers[w];
        int result = uv_thread_create(&worker->thread, worker_main, worker);
        worker->started = result == 0;
        if (result != 0) {
            error_input(error, "cannot start thread %d of %d: %s", w + 1, threads, uv_strerror(result));
            error_hint(error, "run with fewer threads (they change the speed only, never a result)");
            return false;
        }
    }
    return true;
}

void workers_stop(struct machine *machine)
{
    atomic_store(&machine->quit, true);
    for (int w = 1; w < machine->worker_count && machine->workers[w].started; w++) {
        worker_tell(&machine->workers[w]);
        ASSERT(uv_thread_join(&machine->workers[w].thread) == 0);
    }
}
