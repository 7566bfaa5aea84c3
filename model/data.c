/* data: documents into sequences.
 *
 * A document is a paragraph: text up to a blank line. packing "documents": sequences are filled with
 * documents one behind the other; a document's last token has no target (the next one belongs to another
 * document). A document that would be cut begins in the next sequence if no more than half of this one is
 * left: the rest is padded (token 0, no target). So the number of valid targets differs from sequence to
 * sequence, as in real training. A document that reaches the end of a sequence goes on in the next one.
 * packing "stream": one endless document, every target valid. */
#include "model/data.h"

#include "sim/assertion.h"

struct reader { const uint8_t *text; int64_t bytes, at; int32_t document; };

/* Is the byte at `at` the last of its document? Text ends documents too. */
static bool ends_document(const struct reader *r, int64_t at)
{
    return at + 1 >= r->bytes || (r->text[at] == '\n' && r->text[at + 1] == '\n');
}

/* Does the document that begins at `at` reach past `left` tokens? */
static bool exceeds(const struct reader *r, int64_t at, int left)
{
    for (int i = 0; i < left; i++) {
        if (ends_document(r, at + i)) return false;
    }
    return true;
}

static void pad(struct data *data, int64_t from, int64_t to)
{
    for (int64_t p = from; p < to; p++) {
        data->tokens[p] = TOKEN_PADDING;
        data->targets[p] = TARGET_IGNORED;
        data->documents[p] = DOCUMENT_PADDING;
    }
}

static void skip_blank_lines(struct reader *r)
{
    int64_t skipped = 0;
    while (skipped < r->bytes && r->text[r->at] == '\n') {
        r->at = (r->at + 1) % r->bytes;
        skipped++;
    }
}

static void pack_documents(struct reader *r, struct data *data, int64_t sequence)
{
    int64_t base = sequence * data->seq;
    bool inside = r->at > 0 && !ends_document(r, r->at - 1);
    for (int p = 0; p < data->seq; p++) {
        if (!inside) {
            skip_blank_lines(r);
            int left = data->seq - p;
            if (p > 0 && left <= data->seq / 2 && exceeds(r, r->at, left)) {
                pad(data, base + p, base + data->seq);
                return;
            }
            r->document++;
            inside = true;
        }
        bool last = ends_document(r, r->at);
        data->tokens[base + p] = r->text[r->at];
        data->targets[base + p] = last ? TARGET_IGNORED : r->text[r->at + 1];
        data->documents[base + p] = r->document;
        r->at = (r->at + 1) % r->bytes;
        inside = !last;
    }
}

static void pack_stream(struct reader *r, struct data *data, int64_t sequence)
{
    int64_t base = sequence * data->seq;
    for (int p = 0; p < data->seq; p++) {
        data->tokens[base + p] = r->text[r->at];
        r->at = (r->at + 1) % r->bytes;
        data->targets[base + p] = r->text[r->at];
        data->documents[base + p] = 0;
    }
}

struct data data_pack(const struct data_config *config, int seq, int64_t sequences, struct arena *arena)
{
    ASSERT(config->text_bytes >= 2 && seq >= 1 && sequences >= 1);
    struct data data = {.sequences = sequences, .seq = seq};
    size_t bytes = (size_t)(sequences * seq) * sizeof(int32_t);
    data.tokens = arena_alloc(arena, bytes);
    data.targets = arena_alloc(arena, bytes);
    data.documents = arena_alloc(arena, bytes);
    struct reader reader = {config->text, config->text_bytes, 0, -1};
    for (int64_t s = 0; s < sequences; s++) {
        if (config->packing == PACKING_DOCUMENTS) pack_documents(&reader, &data, s);
        else pack_stream(&reader, &data, s);
    }
    return data;
}

struct data_counts data_count(const struct data *data, int64_t first, int64_t count)
{
    struct data_counts counts = {.positions = count * data->seq};
    for (int64_t i = first * data->seq; i < (first + count) * data->seq; i++) {
        counts.valid += data->targets[i] != TARGET_IGNORED;
        counts.unshifted += data->documents[i] != DOCUMENT_PADDING;
    }
    return counts;
}
