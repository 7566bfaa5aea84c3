/* bucket_gather: updated parameters of zero 1 and 2, back into every member's computing copy (see bucket.h).
 *
 *     start   own part of a bucket = master values of what this rank owns, zeros in between; all-gather over dp_shard
 *     wait    the gathered bucket is cut into its pieces, each copied to its place in `full`
 * All of a stage's are under way together: they are started one after the other and waited for in the same order. */
#include "model/bucket.h"

#include <string.h>

#include "model/sites.h"

static void note_gathered(struct unit *unit, const struct ledger *versions)
{
    for (int i = 0; i < versions->count; i++) {
        const struct ledger_term *term = &versions->terms[i];
        if (term->origin.part == unit->index && !ledger_find(&unit->full_version, term->origin))
            ledger_add_term(&unit->full_version, term->origin, term->times, term->scale);
    }
}

static struct where where_of(const struct bucket *bucket, int step)
{
    struct where where = bucket->where;
    where.step = step;
    where.microbatch = -1;
    return where;
}

/* Own part: what this rank has updated, at its place, and of which versions. */
static void fill_own(struct bucket *bucket, const struct unit_context *context, char *own, size_t begin)
{
    enum format storage = unit_storage(context);
    size_t bytes = format_storage_bytes(storage);
    memset(own, 0, bucket->shard_count * bytes);
    ledger_clear(&bucket->own_version);
    for (int k = 0; k < bucket->pieces_count; k++) {
        const struct bucket_piece *piece = &bucket->pieces[k];
        const struct unit_piece *of = &piece->unit->pieces[piece->piece];
        if (of->own_count == 0) continue;
        memcpy(element_at(own, piece->at + (of->own_from - of->from) - begin, storage),
               element_at(piece->unit->master, of->own_at, storage), of->own_count * bytes);
        for (int i = 0; i < piece->unit->shard_version.count; i++) {
            const struct ledger_term *term = &piece->unit->shard_version.terms[i];
            if (!ledger_find(&bucket->own_version, term->origin))
                ledger_add_term(&bucket->own_version, term->origin, term->times, term->scale);
        }
    }
}

void bucket_gather_start(struct bucket *bucket, const struct unit_context *context, int step)
{
    enum format storage = unit_storage(context), wire = context->config->precision.param;
    size_t begin = (size_t)bucket->groups->shard->me * bucket->shard_count;
    struct comm how = {.site = &site_fsdp_unshard, .where = where_of(bucket, step)};
    char *own = element_at(bucket->gathered, begin, storage);
    fill_own(bucket, context, own, begin);
    struct buffer in = {own, bucket->shard_count, storage, wire, &bucket->own_version};
    struct buffer out = {bucket->gathered, bucket->count, storage, wire, &bucket->gathered_version};
    bucket->gathering = all_gather_start(context->communicator, bucket->groups->shard, &how, out, in, NULL);
}

void bucket_gather_wait(struct bucket *bucket, const struct unit_context *context, int step)
{
    enum format storage = unit_storage(context);
    size_t bytes = format_storage_bytes(storage);
    collective_wait(context->communicator, bucket->gathering);
    bucket->gathering = NULL;
    communicator_reads(context->communicator, bucket->gathered, bucket->count * bytes, &site_layer_forward,
                       where_of(bucket, step));
    for (int k = 0; k < bucket->pieces_count; k++) {
        const struct bucket_piece *piece = &bucket->pieces[k];
        const struct unit_piece *of = &piece->unit->pieces[piece->piece];
        memcpy(element_at(piece->unit->full, of->from, storage), element_at(bucket->gathered, piece->at, storage), of->count * bytes);
        note_gathered(piece->unit, &bucket->gathered_version);
    }
}
