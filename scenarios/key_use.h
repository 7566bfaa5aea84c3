/* key_use: no key is taken and not used. By the table key_use.def. */
#ifndef SCENARIOS_KEY_USE_H
#define SCENARIOS_KEY_USE_H

#include "scenarios/reader.h"

/* Is it read there? method NULL, or a plug-in's name: of any. */
bool key_is_read(const struct key *key, enum workload workload, const char *method);
/* What has to be set beside it so that a plain file reads it: "--set workload=denoise "; or "". Into text. */
const char *key_needs(const struct key *key, char *text, size_t size);
/* "workloads train and denoise", "methods ring and usp"; empty: read wherever it is given. Into text. */
const char *key_used_by(const struct key *key, char *text, size_t size);
/* A key that the file gives, another value than its default, and that its workload or its context method does not read: an error
 * with its place, why, and a way out. method: as it will run; NULL or a plug-in's: methods are not looked at. */
bool key_use_check(struct reader *reader, enum workload workload, const char *method);

#endif
