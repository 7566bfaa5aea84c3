/* explain_ring: the lesson of a ring (scenarios/ring_lesson.h) to be read, and as JSON. */
#ifndef TOOLS_REPORT_EXPLAIN_RING_H
#define TOOLS_REPORT_EXPLAIN_RING_H

#include "scenarios/result.h"
#include "tools/report/terminal.h"

void explain_ring_text(const struct result *result, const struct terminal *terminal);
char *explain_ring_json(const struct result *result); /* malloc'd */

#endif
