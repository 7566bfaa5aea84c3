/* listing: see the header. */
#include "tools/listing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "scenarios/spelling.h"
#include "tools/output.h"
#include "tools/report/json_value.h"

const char *listing_facets(unsigned facets, char text[FACETS_TEXT])
{
    static const char *const names[] = {"reduces",        "rooted", "point-to-point", "asynchronous", "guarded",
                                        "compares-index", "merges", "differentiable", "logarithmic", "axes", "blocks", "mode"};
    size_t used = 0;
    text[0] = 0;
    for (int i = 0; i < (int)(sizeof names / sizeof names[0]); i++) {
        if (facets >> i & 1)
            used += (size_t)snprintf(text + used, FACETS_TEXT - used, "%s%s", used ? "," : "", names[i]);
    }
    return text;
}

int listing_unknown(const char *kind, const char *name, const char *const *names, int count)
{
    struct error error = {0};
    char shown[FOREIGN_TEXT];
    error_input(&error, "unknown %s \"%s\"", kind, foreign(name, shown));
    const char *near = spelling_nearest(name, names, count);
    if (near) error_hint(&error, "did you mean %s? hpsim %ss lists all", near, kind);
    else error_hint(&error, "hpsim %ss lists all", kind);
    return command_fail(&error);
}

int listing_json(const struct options *options, cJSON *list)
{
    struct error error = {0};
    char *text = json_finish(list);
    bool good = output_write(options->json, text, &error);
    free(text);
    return good ? EXIT_EXPECTED : command_fail(&error);
}

bool listing_wants_text(const struct options *options)
{
    return !options->json;
}

const char *listing_parts(const struct fault *fault, enum listing_part part, char text[256])
{
    size_t used = 0;
    text[0] = 0;
    for (int i = 0; i < fault->parts_count && used < 256; i++) {
        const char *name = part == PART_SITE ? fault->parts[i].site : fault->parts[i].deviation;
        bool repeated = false;
        for (int j = 0; j < i; j++)
            repeated = repeated || !strcmp(name, part == PART_SITE ? fault->parts[j].site : fault->parts[j].deviation);
        if (!repeated) used += (size_t)snprintf(text + used, 256 - used, "%s%s", used ? "," : "", name);
    }
    return text;
}
