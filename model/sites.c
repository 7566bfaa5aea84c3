/* sites: the tables of the training program's sites and deviations. */
#include "model/sites.h"

#include <string.h>

#define SITE(identifier, name, kind, component, facets, what) \
    const struct site site_##identifier = {name, kind, component, facets, what};
#include "model/sites.def"
#undef SITE

static const struct site *const sites[] = {
#define SITE(identifier, name, kind, component, facets, what) &site_##identifier,
#include "model/sites.def"
#undef SITE
};

int model_site_count(void)
{
    return (int)(sizeof sites / sizeof sites[0]);
}

const struct site *model_site(int i)
{
    return i >= 0 && i < model_site_count() ? sites[i] : NULL;
}

const struct site *model_site_find(const char *name)
{
    for (int i = 0; i < model_site_count(); i++) {
        if (!strcmp(sites[i]->name, name)) return sites[i];
    }
    return NULL;
}

int model_site_order(const struct site *site)
{
    for (int i = 0; i < model_site_count(); i++) {
        if (sites[i] == site) return i;
    }
    return -1;
}
