/* text_details: communication, memory and virtual time, for --verbose. */
#include "tools/report/number.h"
#include "tools/report/report.h"
#include "tools/report/table.h"

static void print_communication(const struct record *record, const struct terminal *t)
{
    static const char *const titles[] = {"communication", "operation", "group",    "algorithm",
                                         "format",        "calls",     "messages", "sent"};
    struct communication all = communication_sum(record);
    struct table *table = table_new(8, titles, "lllllrrr");
    for (int i = 0; i < all.count; i++) {
        const struct communication_row *row = &all.rows[i];
        char number[NUMBER_TEXT];
        table_add(table, STYLE_NAME, "%s", row->purpose);
        table_add(table, STYLE_PLAIN, "%s", row->op);
        table_add(table, STYLE_PLAIN, "%s", row->group);
        table_add(table, STYLE_PLAIN, "%s", row->algorithm[0] ? row->algorithm : "-");
        table_add(table, STYLE_PLAIN, "%s", format_traits[row->format].name);
        table_add(table, STYLE_PLAIN, "%s", number_count((int64_t)row->count, number));
        table_add(table, STYLE_PLAIN, "%s", number_count((int64_t)row->messages, number));
        table_add(table, STYLE_PLAIN, "%s", number_bytes((double)row->bytes, number));
    }
    if (all.count) {
        table_print(table, t, 2);
        fputc('\n', t->file);
    }
    table_free(table);
    communication_done(&all);
}

static void print_ranks(const struct record *record, const struct terminal *t)
{
    static const char *const titles[] = {"rank",  "stage", "data rank", "busy",        "waiting",
                                         "param", "grad",  "optimizer", "activations", "peak"};
    struct table *table = table_new(10, titles, "rrrrrrrrrr");
    for (int r = 0; r < record->ranks; r++) {
        const struct rank_record *rank = &record->rank[r];
        char number[NUMBER_TEXT];
        table_add(table, STYLE_PLAIN, "%d", rank->rank);
        table_add(table, STYLE_PLAIN, "%d", rank->stage);
        table_add(table, STYLE_PLAIN, "%d", rank->data_rank);
        table_add(table, STYLE_PLAIN, "%s", number_seconds(rank->busy_s, number));
        table_add(table, STYLE_PLAIN, "%s", number_seconds(rank->time_s - rank->busy_s, number));
        const int64_t bytes[] = {rank->param_bytes, rank->grad_bytes, rank->optimizer_bytes,
                                 rank->activation_peak_bytes, rank->peak_bytes};
        for (int i = 0; i < 5; i++) table_add(table, STYLE_PLAIN, "%s", number_bytes((double)bytes[i], number));
    }
    table_print(table, t, 2);
    table_free(table);
    fputc('\n', t->file);
}

void report_text_details(const struct report *report, const struct terminal *terminal)
{
    print_communication(report->result->parallel, terminal);
    print_ranks(report->result->parallel, terminal);
}
