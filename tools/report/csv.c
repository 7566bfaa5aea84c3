/* csv: one line a step, numbers with the fewest digits that read back the same. */
#include <stdio.h>
#include <stdlib.h>
#include "sim/arena.h"
#include "tools/report/number.h"
#include "tools/report/report.h"

char *report_csv(const struct result *result)
{
    char *text = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&text, &size);
    if (!file) memory_failed(1);
    fputs("step,loss_parallel,loss_logged,loss_standalone,grad_norm_parallel,grad_norm_standalone\n", file);
    for (int i = 0; i < result->steps_count; i++) {
        const struct step_result *s = &result->steps[i];
        double values[] = {s->parallel, s->logged, s->standalone, s->norm_parallel, s->norm_standalone};
        fprintf(file, "%d", s->step);
        for (int v = 0; v < 5; v++) {
            char number[NUMBER_TEXT];
            fprintf(file, ",%s", number_shortest(values[v], number));
        }
        fputc('\n', file);
    }
    if (fclose(file) != 0) memory_failed(size);
    return text;
}
