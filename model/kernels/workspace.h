/* workspace: a thread's own bytes for the time of one kernel call, 64-byte aligned.
 *
 * Kernels never park, so the coroutines of a thread share it. One buffer for all variants (ops.c). */
#ifndef MODEL_KERNELS_WORKSPACE_H
#define MODEL_KERNELS_WORKSPACE_H

enum { KERNEL_WORKSPACE_BYTES = 384 * 1024 };
void *kernel_workspace(void);

#endif
