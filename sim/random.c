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
    static const double inverse[] = {1.0 / 21, 1.0 / 19, 1.0 / 17, 1.0 / 15, 1.0 / 13, 1.0 / 11, 1.0 / 9, 1.0 / 7, 1.0 / 5, 1.0 / 3};
    double s = (m - 1) / (m + 1), square = s * s, sum = 0;
    for (int i = 0; i < 10; i++) sum = (sum + inverse[i]) * square;
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
    double x = 6.283185307179586 * (as_sine ? 0.25 - u : u), square = x * x, sum = 0;
    /* Taylor from the smallest term: x^2k/(2k)! and x^(2k+1)/(2k+1)!, x <= pi/4. */
    static const double sine[] = {-1.0 / 1307674368000, 1.0 / 6227020800, -1.0 / 39916800, 1.0 / 362880, -1.0 / 5040, 1.0 / 120, -1.0 / 6};
    static const double cosine[] = {1.0 / 20922789888000, -1.0 / 87178291200, 1.0 / 479001600, -1.0 / 3628800, 1.0 / 40320, -1.0 / 720, 1.0 / 24, -0.5};
    if (as_sine) {
        for (int i = 0; i < 7; i++) sum = (sum + sine[i]) * square;
        sum = x + x * sum;
    } else {
        for (int i = 0; i < 8; i++) sum = (sum + cosine[i]) * square;
        sum += 1;
    }
    return sign * sum;
}

/* Box and Muller 1958: sqrt(-2 log u1) cos(2 pi u2), u1 in (0, 1]. */
double random_normal_at(const struct random_stream *stream, uint64_t index)
{
    const struct random_stream own = {hash_mix(stream->key ^ 0x6a09e667f3bcc909u), 0}; /* not the draws of random_at */
    double u1 = 1 - random_unit_at(&own, 2 * index), u2 = random_unit_at(&own, 2 * index + 1);
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
