/* fault: the registries: faults by faults.def, sites and deviations joined from the floors below. */
#include "scenarios/fault.h"

#include <string.h>

#include "collectives/collectives.h"
#include "model/deviations.h"
#include "model/sites.h"

#define FAULT(identifier) extern const struct fault fault_##identifier;
#include "scenarios/faults.def"
#undef FAULT

static const struct fault *const faults[] = {
#define FAULT(identifier) &fault_##identifier,
#include "scenarios/faults.def"
#undef FAULT
};

int fault_count(void)
{
    return (int)(sizeof faults / sizeof faults[0]);
}

const struct fault *fault_at(int i)
{
    return i >= 0 && i < fault_count() ? faults[i] : NULL;
}

const struct fault *fault_find(const char *name)
{
    for (int i = 0; i < fault_count(); i++) {
        if (!strcmp(faults[i]->name, name)) return faults[i];
    }
    return NULL;
}

/* The floor of the collectives has kinds of communication, but no places of its own: all sites are the model's. */
int site_registry_count(void)
{
    return model_site_count();
}

const struct site *site_registry_at(int i)
{
    return model_site(i);
}

const struct site *site_registry_find(const char *name)
{
    return model_site_find(name);
}

int deviation_registry_count(void)
{
    return communication_deviation_count() + model_deviation_count();
}

const struct deviation *deviation_registry_at(int i)
{
    if (i < 0 || i >= deviation_registry_count()) return NULL;
    int below = communication_deviation_count();
    return i < below ? communication_deviation(i) : model_deviation(i - below);
}

const struct deviation *deviation_registry_find(const char *name, enum site_kind kind)
{
    for (int i = 0; i < deviation_registry_count(); i++) {
        const struct deviation *deviation = deviation_registry_at(i);
        if (deviation->kind == kind && !strcmp(deviation->name, name)) return deviation;
    }
    return NULL;
}

bool deviation_applies(const struct deviation *deviation, const struct site *site)
{
    return deviation->kind == site->kind && (deviation->needs & ~site->facets) == 0;
}
