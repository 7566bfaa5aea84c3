/* sites: the training program's places where real systems go wrong, declared in sites.def. */
#ifndef MODEL_SITES_H
#define MODEL_SITES_H

#include "sim/site.h"

#define SITE(identifier, name, kind, component, facets, what) extern const struct site site_##identifier;
#include "model/sites.def"
#undef SITE

int model_site_count(void);
const struct site *model_site(int i);                  /* in dataflow order */
const struct site *model_site_find(const char *name);  /* NULL: none */
int model_site_order(const struct site *site);         /* its place in the dataflow; -1: not one of these */

/* Deviations of factor, decision and tensor sites whose bodies live on this floor. */
int model_deviation_count(void);
const struct deviation *model_deviation(int i);

#endif
