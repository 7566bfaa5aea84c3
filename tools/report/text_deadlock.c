/* text_deadlock: who waits for whom. A cycle is drawn downwards:
 *
 *     +->  rank 3  sends to 6  pp.send_activation  pp, call 5  step 0, action 9 of 30: SEND_F of micro-batch 2
 *     |     waits for
 *     |    rank 6  sends to 3  pp.send_grad        pp, call 5  step 0, action 9 of 30: SEND_B of micro-batch 0
 *     +--   waits for rank 3 */
#include <string.h>
#include "tools/report/report.h"
#include "tools/report/table.h"

enum { CYCLE_SHOWN = 8, BLOCKED_SHOWN = 8 };

static const struct blocked *blocked_of(const struct deadlock *deadlock, int rank)
{
    for (int i = 0; i < deadlock->blocked_count; i++) {
        if (deadlock->blocked[i].rank == rank) return &deadlock->blocked[i];
    }
    return NULL;
}

static void add_cells(struct table *table, const char *edge, const struct blocked *b)
{
    table_add(table, STYLE_BAD, "%s", edge);
    table_add(table, STYLE_BOLD, "rank %d", b->rank);
    bool plain = !b->op || !strcmp(b->op, "send") || !strcmp(b->op, "receive"); /* else what it is a part of */
    table_add(table, STYLE_PLAIN, "%s%s%s %d", plain ? "" : b->op, plain ? "" : ", ",
              b->is_send ? "sends to" : "receives from", b->peer);
    table_add(table, STYLE_NAME, "%s", b->purpose ? b->purpose : "");
    table_add(table, STYLE_DIM, "%s, call %llu", b->group ? b->group : "?", (unsigned long long)b->sequence);
    table_add(table, STYLE_PLAIN, "%s", b->where ? b->where : "");
}

static void print_cycle(const struct deadlock *deadlock, const struct terminal *t)
{
    struct table *table = table_new(6, NULL, "llllll");
    int shown = deadlock->cycle_count <= CYCLE_SHOWN ? deadlock->cycle_count : CYCLE_SHOWN;
    for (int i = 0; i < shown; i++) {
        const struct blocked *b = blocked_of(deadlock, deadlock->cycle[i]);
        if (!b) continue;
        if (i) table_gap(table, "|     waits for");
        add_cells(table, i ? "|  " : "+->", b);
    }
    if (shown < deadlock->cycle_count) {
        char more[64];
        snprintf(more, sizeof more, "|     ... and %d more ranks in the cycle", deadlock->cycle_count - shown);
        table_gap(table, more);
    }
    table_print(table, t, 4);
    table_free(table);
    terminal_print(t, STYLE_DIM, "    +--   waits for rank %d: each does its part only after the other\n\n",
                   deadlock->cycle[0]);
}

void report_text_deadlock(const struct result *result, const struct terminal *terminal)
{
    const struct deadlock *deadlock = &result->parallel->deadlock;
    if (deadlock->blocked_count == 0) return;
    fprintf(terminal->file, "  %d of %d ranks cannot go on", deadlock->blocked_count, result->parallel->ranks);
    if (deadlock->cycle_count > 0) {
        fprintf(terminal->file, "; %d of them wait for each other in a circle:\n\n", deadlock->cycle_count);
        print_cycle(deadlock, terminal);
        return;
    }
    fprintf(terminal->file, "; no circle: what they wait for is never sent or never received:\n\n");
    struct table *table = table_new(6, NULL, "llllll");
    int shown = deadlock->blocked_count <= BLOCKED_SHOWN ? deadlock->blocked_count : BLOCKED_SHOWN;
    for (int i = 0; i < shown; i++) add_cells(table, "", &deadlock->blocked[i]);
    table_print(table, terminal, 2);
    table_free(table);
    fputc('\n', terminal->file);
}
