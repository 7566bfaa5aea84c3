/* nearest: the known name that a misspelt one most likely meant. */
#ifndef TOOLS_NEAREST_H
#define TOOLS_NEAREST_H

/* NULL where none is near. The first of several that are equally near. */
const char *nearest_name(const char *name, const char *const *names, int count);

#endif
