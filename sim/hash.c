/* hash: two lanes of multiply-xor over 8-byte words. Bytes are read little-endian (memcpy on such machines,
 * which are the ones we build for). */
#include "sim/hash.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

uint64_t hash_mix(uint64_t value)
{
    value ^= value >> 30;
    value *= 0xbf58476d1ce4e5b9u;
    value ^= value >> 27;
    value *= 0x94d049bb133111ebu;
    return value ^ value >> 31;
}

void hash_init(struct hash *hash)
{
    *hash = (struct hash){{0x9e3779b97f4a7c15u, 0xc2b2ae3d27d4eb4fu}, 0};
}

static inline void add_word(struct hash *hash, uint64_t word)
{
    uint64_t a = (hash->lane[0] ^ word) * 0xff51afd7ed558ccdu;
    uint64_t b = (hash->lane[1] + word) * 0xc4ceb9fe1a85ec53u;
    hash->lane[0] = a ^ a >> 32;
    hash->lane[1] = b ^ b >> 29;
}

static uint64_t load_word(const unsigned char *data, size_t bytes)
{
    uint64_t word = 0;
    memcpy(&word, data, bytes);
    return word;
}

void hash_bytes(struct hash *hash, const void *data, size_t bytes)
{
    const unsigned char *at = data;
    size_t rest = bytes;
    for (; rest >= 8; rest -= 8, at += 8) add_word(hash, load_word(at, 8));
    if (rest) add_word(hash, load_word(at, rest));
    hash->length += bytes;
}

void hash_u64(struct hash *hash, uint64_t value)
{
    add_word(hash, value);
    hash->length += 8;
}

static uint64_t word_of(double value)
{
    if (value != value) return 0x7ff8000000000000u; /* every NaN is one pattern */
    uint64_t word;
    memcpy(&word, &value, sizeof word);
    return word;
}

void hash_f64(struct hash *hash, double value)
{
    hash_u64(hash, word_of(value));
}

void hash_text(struct hash *hash, const char *text)
{
    size_t length = strlen(text);
    hash_u64(hash, length);
    hash_bytes(hash, text, length);
}

/* Four streams side by side hide the latency of the multiplications; a block that holds no NaN (the sum of
 * v - v is 0 then, and only infinities share the slow path) is hashed as it lies. */
enum { BLOCK = 256 };

static void hash_block(struct hash streams[4], const unsigned char *data, size_t bytes)
{
    size_t words = bytes / 8, i = 0;
    for (; i + 4 <= words; i += 4) {
        for (int s = 0; s < 4; s++) add_word(&streams[s], load_word(data + 8 * (i + (size_t)s), 8));
    }
    for (; i < words; i++) add_word(&streams[0], load_word(data + 8 * i, 8));
    if (bytes % 8) add_word(&streams[1], load_word(data + 8 * words, bytes % 8));
}

static void block_f32(struct hash streams[4], const float *values, size_t count)
{
    float copy[BLOCK], zero = 0;
    for (size_t i = 0; i < count; i++) zero += values[i] - values[i];
    if (zero == 0) {
        hash_block(streams, (const unsigned char *)values, count * 4);
        return;
    }
    for (size_t i = 0; i < count; i++) copy[i] = values[i] == values[i] ? values[i] : NAN;
    hash_block(streams, (const unsigned char *)copy, count * 4);
}

static void block_f64(struct hash streams[4], const double *values, size_t count)
{
    double copy[BLOCK], zero = 0;
    for (size_t i = 0; i < count; i++) zero += values[i] - values[i];
    if (zero == 0) {
        hash_block(streams, (const unsigned char *)values, count * 8);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        uint64_t word = word_of(values[i]);
        memcpy(&copy[i], &word, sizeof word);
    }
    hash_block(streams, (const unsigned char *)copy, count * 8);
}

void hash_reals(struct hash *hash, const void *data, size_t count, enum format format)
{
    struct hash streams[4];
    for (int s = 0; s < 4; s++) {
        hash_init(&streams[s]);
        add_word(&streams[s], (uint64_t)s + 1);
    }
    for (size_t i = 0; i < count; i += BLOCK) {
        size_t n = count - i < BLOCK ? count - i : BLOCK;
        if (format == FORMAT_FP64) block_f64(streams, (const double *)data + i, n);
        else block_f32(streams, (const float *)data + i, n);
    }
    for (int s = 0; s < 4; s++) {
        add_word(hash, streams[s].lane[0]);
        add_word(hash, streams[s].lane[1]);
    }
    hash->length += count * format_storage_bytes(format);
}

void hash_finish(const struct hash *hash, uint64_t ret_digest[2])
{
    ret_digest[0] = hash_mix(hash->lane[0] ^ hash->length);
    ret_digest[1] = hash_mix(hash->lane[1] + hash_mix(hash->length + hash->lane[0]));
}

void hash_hex(const uint64_t digest[2], char ret_text[33])
{
    snprintf(ret_text, 33, "%016llx%016llx", (unsigned long long)digest[0], (unsigned long long)digest[1]);
}

uint64_t hash_string(const char *text)
{
    struct hash hash;
    uint64_t digest[2];
    hash_init(&hash);
    hash_text(&hash, text);
    hash_finish(&hash, digest);
    return digest[0];
}
