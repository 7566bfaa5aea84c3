/* test_scenario_mutation: whatever bytes a scenario or an option holds, loading ends in a scenario or in one error that
 * says what is wrong. Random edits of a valid file; the same ones in each run. */
#include <stdint.h>

#include "sim/random.h"
#include "support/scenario_files.h"
#include "tests/support/run_suite.h"

static const char rich[] =
    "{\"hpsim\":1,\"name\":\"r\\u00e9ch\",\"seed\":7,\"workload\":\"train\",\n\"model\":{\"arch\":\"gpt\",\"layers\":7,\"dim\":24,\"heads\":3,"
    "\"kv_heads\":1,\"head_dim\":8,\"ffn\":40,\"vocab\":256,\"seq\":22,\"attention\":\"mha\",\"causal\":true,\"moe\":{\"dense_layers\":[0]}},\n"
    "\"data\":{\"text\":\"corpus.txt\",\"packing\":\"documents\"},\"train\":{\"steps\":3,\"global_batch\":20,\"optimizer\":{\"kind\":\"adamw\","
    "\"lr\":0.002,\"betas\":[0.9,0.95]},\"grad_clip\":null},\n\"parallel\":{\"pp\":3,\"dp_shard\":2,\"pipeline\":{\"schedule\":\"1F1B\","
    "\"microbatches\":5,\"layers_per_stage\":[3,2,2]},\"fsdp\":{\"zero\":3},\"collectives\":{\"all_reduce\":\"fold\"}},\n\"precision\":\"fp32\","
    "\"faults\":[{\"site\":\"pp.loss.scale\",\"do\":\"times\",\"factor\":\"1/(M*D)\",\"at\":{\"rank\":[4,5],\"step\":1}},"
    "{\"fault\":\"pp-grad-cleared\",\"once\":true,\"in\":\"both\"}],\"expect\":{\"verdict\":\"diverged\",\"checks\":[\"oracle\"]}}";

static size_t edit(struct random_stream *stream, char *text, size_t length)
{
    static const char *const pieces[] = {"{", "}", "[", "]", ",", ":", "\"", "\\", "1e9", "-", "null", "\\ud800", "\xff", "99999999999", "0", "[[", "*", "("};
    size_t at = (size_t)random_below(stream, length), count = 1 + (size_t)random_below(stream, 8);
    if (count > length - at) count = length - at;
    switch (random_below(stream, 5)) {
    case 0: text[at] = (char)random_below(stream, 256); return length;
    case 1: memmove(text + at, text + at + count, length - at - count); return length - count;
    case 2: memmove(text + at + count, text + at, length - at); return length + count; /* repeats */
    case 3: return random_below(stream, 8) == 0 ? at + 1 : length;
    default: {
        const char *piece = pieces[random_below(stream, sizeof pieces / sizeof pieces[0])];
        memmove(text + at + strlen(piece), text + at, length - at);
        memcpy(text + at, piece, strlen(piece));
        return length + strlen(piece);
    }
    }
}

/* A few random edits of a valid file give a scenario or one error with a message; nothing else ever. */
START_TEST(mutated_files)
{
    struct random_stream stream = random_stream(11, "mutated files");
    char text[sizeof rich + 256];
    int accepted = 0;
    for (int round = 0; round < 4000; round++) {
        size_t length = sizeof rich - 1;
        memcpy(text, rich, length);
        for (uint64_t edits = 1 + random_below(&stream, 4); edits > 0; edits--) length = edit(&stream, text, length);
        struct error error = {0};
        files_write("m.json", text, length);
        struct scenario *s = scenario_load(files_path("m.json"), NULL, &error);
        ck_assert_msg(s ? error.kind == ERROR_NONE : error.kind == ERROR_INPUT && error.message[0] && error.file[0], "%.*s", (int)length, text);
        if (s) {
            struct site_plan *plan = scenario_plan(s, round % 2, layout_ranks(&s->config.layout), &error);
            ck_assert_ptr_nonnull(plan);
            site_plan_free(plan);
            accepted++;
        }
        scenario_free(s);
    }
    ck_assert_int_gt(accepted, 100);
}
END_TEST

/* The same for what stands on the command line. */
START_TEST(mutated_options)
{
    static const char *const paths[] = {"parallel.pp", "faults.0.at.step", "precision", "train.optimizer", "expect", "faults[1].fault"};
    static const char *const values[] = {"4", "[1,2]", "fp64", "{\"lr\":0.5}", "{\"ranks\":[1]}", "loss-not-divided"};
    static const char *const faults[] = {"loss-not-divided@step=0,rank=6+7,once", "pp.loss.scale:times@factor=1/(M*D),in=both",
                                         "fsdp.unshard:scale@factor=2,layer=3", "clip.norm_reduce:wrong-group@group=pp"};
    struct random_stream stream = random_stream(13, "mutated options");
    for (int round = 0; round < 3000; round++) {
        char path[128] = "", value[128] = "", fault[128] = "";
        uint64_t which = random_below(&stream, 6);
        strcpy(path, paths[which]);
        strcpy(value, values[which]);
        strcpy(fault, faults[random_below(&stream, 4)]);
        char *edited[] = {path, value, fault};
        char *one = edited[random_below(&stream, 3)];
        one[edit(&stream, one, strlen(one))] = 0;
        struct override override = {path, value};
        const char *list[] = {fault};
        struct scenario_options options = {.overrides_count = 1, .overrides = &override, .faults_count = 1, .faults = list};
        struct error error;
        struct scenario *s = files_load_with(rich, &options, &error);
        ck_assert_msg(s ? error.kind == ERROR_NONE : error.kind == ERROR_INPUT && error.message[0], "%s=%s %s", path, value, fault);
        scenario_free(s);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("scenario_mutation");
    TCase *tcase = tcase_create("edits");
    tcase_add_checked_fixture(tcase, files_setup, files_teardown);
    tcase_set_timeout(tcase, 120);
    tcase_add_test(tcase, mutated_files);
    tcase_add_test(tcase, mutated_options);
    suite_add_tcase(suite, tcase);
    return run_suite(suite, CK_NOFORK);
}
