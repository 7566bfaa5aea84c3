/* sanitizer: which of the compiler's checkers this is built with, and the annotations they take for
 * memory that is handed out again without malloc. All of it is empty in a plain build. */
#ifndef SIM_SANITIZER_H
#define SIM_SANITIZER_H

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SANITIZER_ADDRESS 1
#endif
#if __has_feature(thread_sanitizer)
#define SANITIZER_THREAD 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#define SANITIZER_ADDRESS 1
#endif
#if defined(__SANITIZE_THREAD__)
#define SANITIZER_THREAD 1
#endif

/* May freed memory be kept for reuse? Not where a checker watches what is freed.
 * Red zone: bytes behind each block of an arena that nobody may touch. */
#ifdef SANITIZER_ADDRESS
#define SANITIZER_KEEPS_FREED false
#define SANITIZER_RED_ZONE 64
#include <sanitizer/asan_interface.h>
#define SANITIZER_POISON(data, bytes) __asan_poison_memory_region((data), (bytes))
#define SANITIZER_UNPOISON(data, bytes) __asan_unpoison_memory_region((data), (bytes))
#else
#define SANITIZER_KEEPS_FREED true
#define SANITIZER_RED_ZONE 0
#define SANITIZER_POISON(data, bytes) ((void)(data), (void)(bytes))
#define SANITIZER_UNPOISON(data, bytes) ((void)(data), (void)(bytes))
#endif

/* For a function that reads what no checker knows the owner of: a parked stack. */
#if defined(SANITIZER_ADDRESS)
#define SANITIZER_UNCHECKED __attribute__((noinline, no_sanitize_address))
#elif defined(SANITIZER_THREAD)
#define SANITIZER_UNCHECKED __attribute__((noinline, no_sanitize_thread))
#else
#define SANITIZER_UNCHECKED __attribute__((noinline))
#endif

#endif
