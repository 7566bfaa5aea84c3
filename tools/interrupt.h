/* interrupt: Ctrl-C, SIGTERM and closed pipes. */
#ifndef TOOLS_INTERRUPT_H
#define TOOLS_INTERRUPT_H

#include <stdbool.h>

void interrupt_install(void);
volatile int *interrupt_stop(void);   /* non-zero once the user asked to stop; for train_options.stop */
bool interrupt_pipe_closed(void);     /* somebody who read what is written here has gone */
/* A file that is being written and must not stay if the process is ended by force; NULL: none. */
void interrupt_temporary(const char *path);

#endif
