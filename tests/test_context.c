/* test_context: attention over a split sequence against one device.
 *
 * Every method, layout, mask, kind of heads and number of ranks that is defined, forward and backward, with data whose blocks weigh
 * far from equally, against the kernel of one device in fp64 on the inputs as they are rounded: the relative Frobenius error of each
 * member's rows of each head, in fp64 <= 1e-12, fp32 <= 32 2^-24, bf16 <= 0.8 2^-8, fp16 <= 0.8 2^-11. In CI a part of all
 * combinations, all of them with the argument `long`. */
#include "tests/context_support.h"
#include "tests/support/run_suite.h"

static bool all_of_them;

/* ---- against one device ---- */

static double limit_of(const struct trial *t)
{
    if (t->activation == FORMAT_BF16 || t->activation == FORMAT_FP16) return 0.8 * format_traits[t->activation].unit_roundoff;
    return t->storage == FORMAT_FP64 ? 1e-12 : 32 * 0x1p-24;
}

static void describe(const struct trial *t, char text[256])
{
    snprintf(text, 256, "%s %s %s%s%s%s P %d U %d B %d S %d J %d H %d/%d causal %d window %d documents %d sinks %d %s/%s", t->method, t->layout, t->merge,
             t->tree ? " tree" : "", t->overlap ? " overlap" : "", t->reversed ? " reversed" : "", t->size, t->ulysses, (int)t->batch, (int)t->seq,
             (int)t->joint, t->heads, t->kv_heads, t->causal, (int)t->window, t->documents_kind, t->sinks, format_traits[t->storage].name, format_traits[t->activation].name);
}

/* Whose position is it, for each of [B, S]; -1 joint. */
static int *owners(const struct trial *t)
{
    int *owner = malloc((size_t)(t->batch * t->seq + 1) * sizeof *owner);
    struct group group = {.size = t->size};
    struct context_parallel cp = {.group = &group, .layout = context_layout_find(t->layout)};
    struct context_call call = {.cp = &cp, .batch = t->batch, .seq = t->seq, .joint = t->joint, .joint_place = t->place, .documents = t->documents};
    int32_t *positions = malloc((size_t)(t->seq + 1) * sizeof *positions);
    for (int64_t b = 0; b < t->batch; b++) {
        for (int m = 0; m < t->size; m++) {
            context_positions(&call, m, b, positions);
            for (int64_t i = 0; i < context_rows(&call, m); i++) owner[b * t->seq + positions[i]] = m;
        }
        for (int64_t i = 0; i < t->joint; i++) owner[b * t->seq + (t->place == JOINT_FRONT ? i : t->seq - 1 - i)] = -1;
    }
    free(positions);
    return owner;
}

static double worst_seen[FORMAT_COUNT];

/* Each member's rows of each head (joint rows: a member of their own). The error over their norm; where a few rows are small, by
 * cancellation, over that of as many average rows of the head. */
static void expect_close(const struct trial *t, double *const *ref, int which, double limit)
{
    int heads = which == OUT || which == DQ || which == LSE ? t->heads : t->kv_heads, dim = which == LSE ? 1 : t->dim, *owner = owners(t);
    char text[256];
    describe(t, text);
    for (int m = -1; m < t->size; m++) {
        for (int h = 0; h < heads; h++) {
            double difference = 0, norm = 0, all = 0;
            int64_t rows = 0, finite = 0;
            for (int64_t r = 0; r < t->batch * t->seq; r++) {
                for (int d = 0; d < dim; d++) {
                    size_t i = which == LSE ? (size_t)((r / t->seq * heads + h) * t->seq + r % t->seq) : (size_t)((r * heads + h) * dim + d);
                    double a = t->whole[which][i], b = ref[which][i];
                    finite += d == 0 && !isinf(b);
                    all += isinf(b) ? 0 : b * b;
                    if (owner[r] != m) continue;
                    if (isinf(b)) {
                        ck_assert_msg(a == b, "%s: %s is %g, due %g", text, whole_names[which], a, b);
                        continue;
                    }
                    difference += (a - b) * (a - b);
                    norm += b * b;
                    rows += d == 0;
                }
            }
            double average = finite > 0 ? all * (double)rows / (double)finite : 0, e = sqrt(difference) / (fmax(norm, average) > 0 ? sqrt(fmax(norm, average)) : 1);
            ck_assert_msg(e <= limit, "%s: %s of member %d head %d: %g of %g", text, whole_names[which], m, h, e, e / limit);
            if (e > worst_seen[t->activation]) worst_seen[t->activation] = e;
        }
    }
    free(owner);
}

static void compare(struct trial *t)
{
    double *ref[WHOLE];
    bool narrow = t->activation != t->storage;
    trial_run(t);
    ck_assert_int_eq(t->ranks.outcome, MACHINE_FINISHED);
    struct mismatch mismatch[1];
    ck_assert_int_eq(match_calls(t->ranks.communicators, t->size, true, mismatch, 1), 0);
    reference(t, ref, narrow);
    for (int w = OUT; w <= DV; w++) {
        if (w >= DQ && t->forward_only) break;
        expect_close(t, ref, w, w == LSE && narrow ? 32 * 0x1p-24 : limit_of(t));
    }
    for (int h = 0; h < t->heads && t->sinks && !narrow; h++) ck_assert(fabs(t->whole[D_SINKS][h] - ref[D_SINKS][h]) <= limit_of(t) * (fabs(ref[D_SINKS][h]) + 1) * 10);
    for (int m = 1; m < t->size && t->joint; m++) { /* all members have the joint rows' output, from all keys */
        for (int64_t i = 0; i < t->batch * t->joint * t->heads * t->dim; i++) ck_assert(fabs(t->joint_out[m][i] - t->joint_out[0][i]) <= 4 * limit_of(t) * (1 + fabs(t->joint_out[0][i])));
    }
    reference_free(ref);
}

struct mask { bool causal; int64_t window; int documents; };
static const struct mask masks[] = {{true, 0, 0}, {false, 0, 0}, {true, 9, 0}, {false, 7, 0}, {false, 0, 1}, {true, 0, 2}, {true, 13, 3}};
static const int64_t lengths[] = {83, 66, 64, 5};
static const struct { enum format storage, activation; } formats[] = {
    {FORMAT_FP64, FORMAT_FP64}, {FORMAT_FP32, FORMAT_FP32}, {FORMAT_FP32, FORMAT_BF16}, {FORMAT_FP32, FORMAT_FP16}};

/* heads 0: as many of keys as of queries; 1: grouped; 2: one of keys. */
static void heads_of(struct trial *t, int kind)
{
    bool split = !strcmp(t->method, "ulysses") || !strcmp(t->method, "usp");
    int parts = !strcmp(t->method, "ulysses") ? t->size : !strcmp(t->method, "usp") ? t->ulysses : 1;
    t->heads = kind == 0 ? 3 : kind == 1 ? 6 : 4;
    t->kv_heads = kind == 0 ? 3 : kind == 1 ? 2 : 1;
    if (split && kind == 0) t->heads = t->kv_heads = parts;
    if (split && kind == 1) t->kv_heads = parts, t->heads = 2 * parts;
    if (split && kind == 2) t->heads = 2 * parts;
}

/* A divisor of the size, another one each time. */
static int divisor(int size, int64_t turn)
{
    int found = 0, all[16];
    for (int d = 1; d <= size; d++) {
        if (size % d == 0) all[found++] = d;
    }
    return all[turn % found];
}

START_TEST(as_on_one_device)
{
    int64_t turn = 0, done = 0, refused = 0;
    for (int m = 0; m < context_method_count(); m++)
        for (int l = 0; l < context_layout_count(); l++)
            for (size_t k = 0; k < sizeof masks / sizeof *masks; k++)
                for (int heads = 0; heads < 3; heads++)
                    for (int size = 1; size <= 8; size++)
                        for (int s = 0; s < 4; s++)
                            for (int batch = 1; batch <= 2; batch++)
                                for (int f = 0; f < 4; f++) {
                                    turn++;
                                    if (!all_of_them && turn * 7 % 53 != 0) continue;
                                    int64_t way = done;
                                    struct trial t = {.method = context_method_at(m)->name, .layout = context_layout_at(l)->name,
                                        .merge = context_merge_at((int)(way % context_merge_count()))->name, .tree = way / 4 % 2, .overlap = way / 8 % 2, .reversed = way / 2 % 2,
                                        .size = size, .ulysses = divisor(size, way), .batch = batch, .seq = lengths[s], .dim = 12, .causal = masks[k].causal,
                                        .window = masks[k].window, .documents_kind = masks[k].documents, .storage = formats[f].storage, .activation = formats[f].activation,
                                        .softmax = formats[f].storage, .ledgers = way % 3 == 0};
                                    heads_of(&t, heads);
                                    struct context_shape shape = {.batch = batch, .seq = t.seq, .size = size, .ulysses = t.ulysses, .heads = t.heads, .kv_heads = t.kv_heads, .head_dim = t.dim};
                                    char why[320] = "";
                                    if (!context_method_at(m)->allows(&shape, why)) {
                                        ck_assert_ptr_nonnull(strstr(why, "divide"));
                                        refused++;
                                        continue;
                                    }
                                    compare(&t);
                                    trial_done(&t);
                                    done++;
                                }
    ck_assert_int_gt(refused, 0);
    ck_assert_int_gt(done, 200);
    printf("%d cases, %d refused; worst fp64 %.2g, fp32 %.2f of 2^-24, bf16 %.2f of 2^-8, fp16 %.2f of 2^-11\n", (int)done, (int)refused, worst_seen[FORMAT_FP64],
           worst_seen[FORMAT_FP32] * 0x1p24, worst_seen[FORMAT_BF16] * 0x1p8, worst_seen[FORMAT_FP16] * 0x1p11);
}
END_TEST

int main(int argc, char **argv)
{
    all_of_them = argc > 2 && !strcmp(argv[2], "long");
    Suite *suite = suite_create("context");
    TCase *tests = tcase_create("context");
    tcase_set_timeout(tests, 3000);
    tcase_add_test(tests, as_on_one_device);
    suite_add_tcase(suite, tests);
    return run_suite(suite, CK_NOFORK);
}
