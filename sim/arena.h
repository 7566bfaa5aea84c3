/* arena: memory that is freed all at once. One for each life time (run, step, scratch) of a rank.
 *
 * Blocks are 64-byte aligned. Not thread-safe: an arena belongs to one rank. Running out of memory
 * ends the process with a message and exit status 2 (memory_failed). In poisoning arenas fresh and
 * released memory is filled with signalling bytes that read as NaN in every number format. */
#ifndef SIM_ARENA_H
#define SIM_ARENA_H

#include <stdbool.h>
#include <stddef.h>

struct arena;
struct arena_mark { void *chunk; size_t used; };

struct arena *arena_new(const char *name, bool poison); /* caller owns; arena_free */
void arena_free(struct arena *arena);                   /* accepts NULL */

void *arena_alloc(struct arena *arena, size_t bytes);   /* uninitialised (poisoned if so made) */
void *arena_zalloc(struct arena *arena, size_t bytes);  /* zeroed */
char *arena_printf(struct arena *arena, const char *format, ...) __attribute__((format(printf, 2, 3)));
char *arena_strdup(struct arena *arena, const char *text);

struct arena_mark arena_mark(const struct arena *arena);
void arena_release(struct arena *arena, struct arena_mark mark); /* all since the mark */
void arena_reset(struct arena *arena);                           /* all; keeps the chunks for reuse */
size_t arena_used(const struct arena *arena);
size_t arena_peak(const struct arena *arena);                    /* highest arena_used so far, bytes */

/* malloc family that never returns NULL (see above). Freed with free(). */
void *memory_alloc(size_t bytes);
void *memory_zalloc(size_t bytes);
void *memory_realloc(void *old, size_t bytes);
char *memory_strdup(const char *text);
void memory_failed(size_t bytes) __attribute__((noreturn));
/* Fill with bytes that are a quiet NaN as fp64, fp32, bf16 and fp16. */
void memory_poison(void *data, size_t bytes);

#endif
