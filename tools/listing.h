/* listing: what faults, sites and checks share. */
#ifndef TOOLS_LISTING_H
#define TOOLS_LISTING_H

#include <cJSON.h>
#include "scenarios/fault.h"
#include "tools/command.h"

enum { FACETS_TEXT = 160 };
/* "reduces,asynchronous"; "" where there is none. */
const char *listing_facets(unsigned facets, char text[FACETS_TEXT]);
/* Exit status 2 and the nearest name. */
int listing_unknown(const char *kind, const char *name, const char *const *names, int count);
/* To --json; the tree is freed. Exit status. */
int listing_json(const struct options *options, cJSON *list);
bool listing_wants_text(const struct options *options);
/* "site:deviation" of a fault's parts, or one of the two. */
enum listing_part { PART_SITE, PART_DEVIATION };
const char *listing_parts(const struct fault *fault, enum listing_part part, char text[256]);

#endif
