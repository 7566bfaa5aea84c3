/* random: draw i of a stream is a mixing of (key, i); logarithm and cosine are our own, so that normal
 * draws have the same bits on every machine and with every C library. */
#include "sim/random.h"

#include <math.h>
#include <string.h>

#include "sim/assertion.h"
#include "sim/hash.h"

struct random_stream random_stream(uint64_t seed, const char *name)
{
    return (struct random_stream){hash_mix(seed + 0x9e3779b97f4a7c15u) ^ hash_string(name), 0};
}

uint64_t random_at(const struct random_stream *stream, uint64_t index)
{
    return hash_mix(stream->key ^ hash_mix(index * 0x9e3779b97f4a7c15u + 0x632be59bd9b4e019u));
}

uint64_t random_u64(struct random_stream *stream)
{
    return random_at(stream, stream->counter++);
}

double random_unit_at(const struct random_stream *stream, uint64_t index)
{
    return (double)(random_at(stream, index) >> 11) * 0x1p-53;
}

double random_unit(struct random_stream *stream)
{
    return random_unit_at(stream, stream->counter++);
}

/* log x for x in (0, 1], error below 2 ulp: x = m 2^e with m in [sqrt(1/2), sqrt(2)), s = (m-1)/(m+1),
 * log m = 2 (s + s^3/3 + s^5/5 + ...), |s| < 0.172. */
static double log_of(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    int exponent = (int)(bits >> 52) - 1023;
    bits = (bits & 0x000fffffffffffffu) | 0x3ff0000000000000u;
    double m;
    memcpy(&m, &bits, sizeof m);
    if (m > 1.4142135623730951) {
        m *= 0.5;
        exponent++;
    }
    double s = (m - 1) / (m + 1), square = s * s, sum = 0;
    for (int k = 23; k >= 3; k -= 2) sum = (sum + 1.0 / k) * square;
    return exponent * 0.6931471805599453 + 2 * (s + s * sum);
}

/* cos(2 pi u) for u in [0, 1): folded to an eighth of a turn, then a Taylor sum. */
static double cos_turn(double u)
{
    double sign = 1;
    if (u > 0.5) u = 1 - u;
    if (u > 0.25) {
        u = 0.5 - u;
        sign = -1;
    }
    bool as_sine = u > 0.125;
    double x = 6.283185307179586 * (as_sine ? 0.25 - u : u), square = x * x, term, sum;
    if (as_sine) {
        term = sum = x;
        for (int k = 2; k <= 20; k += 2) sum += term *= -square / (k * (k + 1));
    } else {
        term = sum = 1;
        for (int k = 1; k <= 19; k += 2) sum += term *= -square / (k * (k + 1));
    }
    return sign * sum;
}

/* Box and Muller 1958: sqrt(-2 log u1) cos(2 pi u2), u1 in (0, 1]. */
double random_normal_at(const struct random_stream *stream, uint64_t index)
{
    double u1 = 1 - random_unit_at(stream, 2 * index), u2 = random_unit_at(stream, 2 * index + 1);
    return sqrt(-2 * log_of(u1)) * cos_turn(u2);
}

uint64_t random_below(struct random_stream *stream, uint64_t bound)
{
    ASSERT(bound >= 1);
    uint64_t unfair = (0 - bound) % bound; /* draws below this would favour small results */
    for (;;) {
        uint64_t draw = random_u64(stream);
        if (draw >= unfair) return draw % bound;
    }
}

void random_shuffle(struct random_stream *stream, int *items, int count)
{
    for (int i = count - 1; i > 0; i--) {
        int j = (int)random_below(stream, (uint64_t)i + 1), item = items[i];
        items[i] = items[j];
        items[j] = item;
    }
}
