/* validate: what keys say together. Defaults that follow from other keys, and the arithmetic between them. */
#ifndef SCENARIOS_VALIDATE_H
#define SCENARIOS_VALIDATE_H

#include "scenarios/reader.h"

/* Fills in what was not given and checks that everything divides and fits. */
bool validate_scenario(struct reader *reader, struct draft *draft);
/* The memory that it needs, and that there is something to learn from; once the text is there. */
bool validate_size(struct reader *reader, const struct scenario *scenario);

#endif
