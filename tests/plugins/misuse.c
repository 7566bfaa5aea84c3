/* misuse: an attention that breaks one rule of hpsim.h, or none, for tests/test_plugins.sh. Which one, the window says: 1000 + a
 * number, wider than any sequence here, so that it hides nothing. Beside it, it is right: all keys and values by all_gather. */
#include <hpsim.h>
#include <fenv.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum rule {
    NONE, WRONG_MEMBER, TOO_MANY, INTO_INPUT, WAIT_TWICE, NEVER_WAIT, FREE_INPUT, FREE_TWICE, BEHIND_OUT, TO_INPUT, UNFILLED, CHANGE_SENT,
    RETURNS, CRASH, LOOP, TAG, NO_COUNTS, REFUSES, WAIT_FOR_NOTHING, NULL_DATA, SELF_UNEVEN, LSE_LEFT, CRASH_EARLY, WIRE, OVERLAP, POSITIONS, ROUNDING, WILD,
    SELF_COUNTS, NEGATIVE, SEQUENCE, COUNT, FREED, BATCH
};

static volatile int zero;

static double load(const struct hpsim_attention *a, const void *x, int64_t i)
{
    return a->real_bytes == 4 ? (double)((const float *)x)[i] : ((const double *)x)[i];
}

static void store(const struct hpsim_attention *a, void *x, int64_t i, double value)
{
    if (a->real_bytes == 4) ((float *)x)[i] = (float)value;
    else ((double *)x)[i] = value;
}

/* Each misuse has one status, and what is right has HPSIM_OK, also after it: anything else ends the process. */
static void is(int status, int due)
{
    if (status != due) abort();
}

/* What is done against the rules, before the rest. */
static void misuse(const struct hpsim_attention *a, enum rule rule)
{
    const struct hpsim_api *api = a->api;
    int next = (a->member + 1) % a->members, previous = (a->member + a->members - 1) % a->members;
    int64_t counts[64] = {0}, others[64] = {0}, own = a->batch * a->rows * a->kv_heads * a->head_dim;
    double *w = api->workspace(a->call, 64);
    struct hpsim_transfer *s, *r;
    if (a->members == 1) return; /* the same attention once more on one rank, which has nobody to send to */
    switch (rule) {
    case WRONG_MEMBER: is(api->send(a->call, a->members + 4, 0, a->k, own, HPSIM_WIRE_FULL), HPSIM_WRONG_MEMBER); break;
    case TOO_MANY: is(api->send(a->call, next, 0, a->k, own + 1, HPSIM_WIRE_FULL), HPSIM_WRONG_COUNT); break;
    case INTO_INPUT: is(api->receive(a->call, previous, 0, (void *)(size_t)a->k, own, HPSIM_WIRE_FULL), HPSIM_WRONG_POINTER); break;
    case TAG: is(api->send(a->call, next, -1, a->k, own, HPSIM_WIRE_FULL), HPSIM_WRONG_TAG); break;
    case WIRE: is(api->send(a->call, next, 0, a->k, own, (enum hpsim_wire)7), HPSIM_WRONG_ARGUMENT); break;
    case WILD: if (a->member == 2) api->send_start(a->call, next, 0, (char *)(size_t)zero + 64, 3, HPSIM_WIRE_FULL); break;
    case NULL_DATA: is(api->receive(a->call, previous, 0, NULL, 3, HPSIM_WIRE_FULL), HPSIM_WRONG_POINTER); break;
    case NO_COUNTS: is(api->all_gather(a->call, a->k, w, NULL, HPSIM_WIRE_FULL), HPSIM_WRONG_POINTER); break;
    case OVERLAP: is(api->all_to_all(a->call, w, (char *)w + a->real_bytes, 1, HPSIM_WIRE_FULL), HPSIM_WRONG_POINTER); break;
    case SELF_UNEVEN: is(api->all_to_all_uneven(a->call, w, NULL, w, counts, HPSIM_WIRE_FULL), HPSIM_WRONG_POINTER); break;
    case POSITIONS: is(api->positions(a->call, a->members, 0, (int32_t *)w), HPSIM_WRONG_MEMBER); break;
    case WAIT_FOR_NOTHING: is(api->wait(a->call, (struct hpsim_transfer *)w), HPSIM_WRONG_POINTER); break;
    case FREE_INPUT: is(api->workspace_free(a->call, (void *)(size_t)a->q), HPSIM_WRONG_POINTER); break;
    case FREE_TWICE: is(api->workspace_free(a->call, w), HPSIM_OK); is(api->workspace_free(a->call, w), HPSIM_WRONG_POINTER); break;
    case SELF_COUNTS:
        counts[a->member] = 2;
        others[a->member] = 1;
        is(api->all_to_all_uneven(a->call, w, counts, (char *)w + 32, others, HPSIM_WIRE_FULL), HPSIM_WRONG_COUNT);
        break;
    case NEGATIVE: counts[0] = -1; is(api->all_gather(a->call, w, (char *)w + 32, counts, HPSIM_WIRE_FULL), HPSIM_WRONG_COUNT); break;
    case SEQUENCE:
        is(api->positions(a->call, 0, -1, (int32_t *)w), HPSIM_WRONG_ARGUMENT);
        is(api->positions(a->call, 0, 0, NULL), HPSIM_WRONG_POINTER);
        break;
    case COUNT: is(api->send(a->call, next, 0, a->k, -1, HPSIM_WIRE_FULL), HPSIM_WRONG_COUNT); break;
    case FREED:
        is(api->workspace_free(a->call, w), HPSIM_OK);
        is(api->send(a->call, next, 0, w, 1, HPSIM_WIRE_FULL), HPSIM_WRONG_POINTER);
        break;
    case TO_INPUT: store(a, (void *)(size_t)a->q, 0, 3); break;
    case CRASH_EARLY: if (a->member == 2) *(volatile int *)(size_t)zero = 1; break;
    case WAIT_TWICE: case NEVER_WAIT: case CHANGE_SENT: case CRASH: case LOOP:
        store(a, w, 0, 1);
        s = api->send_start(a->call, next, 3, w, 1, HPSIM_WIRE_FULL);
        r = api->receive_start(a->call, previous, 3, (char *)w + 32, 1, HPSIM_WIRE_FULL);
        if (rule == CHANGE_SENT) store(a, w, 0, 2);
        if (rule != NEVER_WAIT) is(api->wait(a->call, s), HPSIM_OK);
        is(api->wait(a->call, r), HPSIM_OK);
        if (rule == WAIT_TWICE) is(api->wait(a->call, r), HPSIM_WAITED_TWICE);
        if (rule == CRASH && a->member == 2) *(volatile int *)(size_t)zero = 1;
        while (rule == LOOP && a->member == 1 && !zero) continue;
        break;
    default: break;
    }
}

static void row(const struct hpsim_attention *a, const void *k, const void *v, const int64_t *base, int32_t *const *positions, int64_t b, int64_t i, int h)
{
    int64_t q = ((b * a->rows + i) * a->heads + h) * a->head_dim, j;
    double largest = -INFINITY, sum = 0, *acc = a->api->workspace(a->call, (size_t)a->head_dim * sizeof *acc);
    int m, d, pass;
    for (d = 0; d < a->head_dim; d++) acc[d] = 0;
    for (pass = 0; pass < 2; pass++) for (m = 0; m < a->members; m++) for (j = 0; j < a->rows_of[m]; j++) {
        int64_t at = base[m] + ((b * a->rows_of[m] + j) * a->kv_heads + h / (a->heads / a->kv_heads)) * a->head_dim;
        double s = 0, p;
        if (a->causal && positions[m][b * a->rows_of[m] + j] > a->positions[b * a->rows + i]) continue;
        for (d = 0; d < a->head_dim; d++) s += load(a, a->q, q + d) * load(a, k, at + d);
        s *= a->scale;
        if (pass == 0) {
            largest = s > largest ? s : largest;
            continue;
        }
        p = exp(s - largest);
        sum += p;
        for (d = 0; d < a->head_dim; d++) acc[d] += p * load(a, v, at + d);
    }
    for (d = 0; d < a->head_dim; d++) store(a, a->out, q + d, acc[d] / sum);
    if (a->window != 1000 + LSE_LEFT) store(a, a->lse, (b * a->heads + h) * a->rows + i, largest + log(sum));
    a->api->workspace_free(a->call, acc);
}

static int forward(const struct hpsim_attention *a)
{
    enum rule rule = (enum rule)(a->window >= 1000 ? a->window - 1000 : 0);
    int64_t counts[64], base[64], all = 0, b, i, last = a->batch * a->rows * a->heads * a->head_dim;
    int32_t *positions[64];
    void *k, *v;
    int m, h;
    misuse(a, rule);
    for (m = 0; m < a->members; m++) {
        base[m] = all;
        counts[m] = a->batch * a->rows_of[m] * a->kv_heads * a->head_dim;
        all += counts[m];
        positions[m] = a->api->workspace(a->call, (size_t)(a->batch * a->rows_of[m] + 1) * sizeof(int32_t));
        for (b = 0; b < a->batch; b++) a->api->positions(a->call, m, b, positions[m] + b * a->rows_of[m]);
    }
    k = a->api->workspace(a->call, (size_t)(all * a->real_bytes));
    v = a->api->workspace(a->call, (size_t)(all * a->real_bytes));
    is(a->api->all_gather(a->call, a->k, k, counts, HPSIM_WIRE_ACTIVATION), HPSIM_OK);
    is(a->api->all_gather(a->call, a->v, v, counts, HPSIM_WIRE_ACTIVATION), HPSIM_OK);
    is(a->api->barrier(a->call), HPSIM_OK);
    for (b = 0; b < a->batch; b++) for (i = rule == UNFILLED; i < a->rows; i++) for (h = 0; h < a->heads; h++) row(a, k, v, base, positions, b, i, h);
    if (rule == BEHIND_OUT) store(a, a->out, last, 1);
    if (rule == ROUNDING) fesetround(FE_UPWARD);
    return rule == RETURNS ? 3 : 0;
}

static int refuses(const struct hpsim_shape *shape, char *ret_why, size_t ret_why_bytes)
{
    const char *why = shape->window == 1000 + REFUSES             ? "this window is the one that it does not like"
                      : shape->window > 0 && shape->window < 1000 ? "no windows"
                      : shape->documents                          ? "no documents"
                                                                  : NULL;
    if (shape->window == 1000 + BATCH) {
        snprintf(ret_why, ret_why_bytes, "%d sequences", (int)shape->batch);
        return 1;
    }
    if (why) strncpy(ret_why, why, ret_why_bytes - 1);
    return why != NULL;
}

static const struct hpsim_attention_method method = {"misuse", "right but for one rule", forward, NULL, refuses};
static const struct hpsim_description description = {HPSIM_ABI, sizeof(struct hpsim_description), "misuse", &method, NULL, 0, NULL, 0, NULL, 0};

const struct hpsim_description *hpsim_plugin(void)
{
    return &description;
}
