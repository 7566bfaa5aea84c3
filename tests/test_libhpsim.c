/* libhpsim as a program uses it: hpsim.h, the shared library and nothing else of hpsim's. A run gives the JSON of `hpsim run`; an error gives
 * its text; a plug-in that ends its process ends no more than that; several threads may run at once.
 * usage: test_libhpsim SCENARIOS BUILD_ROOT */
#include <hpsim.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failed;
static char scenarios[1024], build[1024];

#define EXPECT(condition, ...) ((condition) ? (void)0 : (failed++, printf("libhpsim: line %d: %s: ", __LINE__, #condition), printf(__VA_ARGS__), (void)puts("")))

static int run(const char *scenario, int set_count, const char *const *set, char **ret_json, char **ret_error)
{
    struct hpsim_run_options options = {.size = sizeof options, .set = set, .set_count = set_count, .threads = 2, .interleave = 3};
    char path[1200];
    snprintf(path, sizeof path, "%s/%s", scenarios, scenario);
    return hpsim_run(path, &options, ret_json, ret_error);
}

/* The text behind "key": in a JSON text; "" where it is not there. */
static const char *value_of(const char *json, const char *key, char text[256])
{
    char quoted[64];
    snprintf(quoted, sizeof quoted, "\"%s\":", key);
    const char *at = json ? strstr(json, quoted) : NULL;
    if (!at) return "";
    at += strlen(quoted) + strspn(at + strlen(quoted), " \t\"");
    snprintf(text, 256, "%.*s", (int)strcspn(at, "\",\n"), at);
    return text;
}

static void test_one(void)
{
    const char *const set[] = {"train.steps=1"};
    char *json = NULL, *error = NULL, *again = NULL, text[256], other[256];
    int status = run("pp4_fsdp2.json", 1, set, &json, &error);
    EXPECT(status == 0 && json && !error, "status %d, %s", status, error ? error : "no error");
    EXPECT(!strcmp(value_of(json, "verdict", text), "consistent"), "%s", text);
    EXPECT(!strcmp(value_of(json, "version", text), hpsim_version()), "%s", text);
    char path[1200];
    snprintf(path, sizeof path, "%s/pp4_fsdp2.json", scenarios);
    struct hpsim_run_options plain = {.size = sizeof plain, .set = set, .set_count = 1, .checks = "default"};
    status = hpsim_run(path, &plain, &again, NULL);
    EXPECT(status == 0 && !strcmp(value_of(json, "digest", text), value_of(again, "digest", other)), "%s and %s", text, other);
    hpsim_free(json);
    hpsim_free(again);
    hpsim_free(error);
    hpsim_free(NULL);
}

static void test_errors(void)
{
    const char *const wrong[] = {"train.stepz=1"}, *const not_one[] = {"train.steps"};
    char *json = NULL, *error = NULL;
    int status = run("pp4_fsdp2.json", 1, wrong, &json, &error);
    EXPECT(status == 2 && !json && error && strstr(error, "did you mean 'steps'"), "status %d, %s", status, error ? error : "no error");
    hpsim_free(error);
    status = run("pp4_fsdp2.json", 1, not_one, NULL, &error);
    EXPECT(status == 2 && error && strstr(error, "PATH=VALUE"), "status %d", status);
    hpsim_free(error);
    status = run("no_such_file.json", 0, NULL, &json, &error);
    EXPECT(status == 2 && !json && error && strstr(error, "does not exist"), "status %d", status);
    hpsim_free(error);
    status = hpsim_run(NULL, NULL, &json, &error);
    EXPECT(status == 2 && !json && error, "status %d", status);
    hpsim_free(error);
    struct hpsim_run_options unset = {0};
    status = hpsim_run("x.json", &unset, NULL, NULL);
    EXPECT(status == 2, "status %d", status);
}

static void test_plugins(void)
{
    char plugin[1200], text[256];
    const char *set[] = {"train.steps=1", "parallel={\"dp_replicate\": 3}", "train.global_batch=6", plugin, "parallel.collectives.all_reduce=root"};
    char *json = NULL, *error = NULL;
    snprintf(plugin, sizeof plugin, "plugin=%s/tools/plugins/all_reduce_root.so", build);
    int status = run("pp4_fsdp2.json", 5, set, &json, &error);
    EXPECT(status == 0 && json && strstr(json, "\"algorithm\": \"root\""), "status %d, %s", status, error ? error : json ? "another algorithm" : "no error");
    hpsim_free(json);
    hpsim_free(error);
    snprintf(plugin, sizeof plugin, "plugin=%s/tests/plugins/misbehave.so", build);
    set[4] = "parallel.collectives.all_reduce=exit";
    status = run("pp4_fsdp2.json", 5, set, &json, &error);
    EXPECT(status == 1 && json && !error, "status %d, %s", status, error ? error : "no error");
    EXPECT(!strcmp(value_of(json, "component", text), "plugin") && strstr(json, "it called exit(0)"), "%s", text);
    hpsim_free(json);
    set[4] = "parallel.collectives.all_reduce=nothing";
    status = run("pp4_fsdp2.json", 5, set, &json, &error);
    EXPECT(status == 2 && !json && error && strstr(error, "of the plug-in: 'crash'"), "status %d, %s", status, error ? error : "no error");
    hpsim_free(error);
}

static void *in_a_thread(void *digest)
{
    const char *const set[] = {"train.steps=1"};
    char *json = NULL, text[256];
    int status = run("pp4_fsdp2.json", 1, set, &json, NULL);
    snprintf(digest, 64, "%d %.40s", status, value_of(json, "digest", text));
    hpsim_free(json);
    return NULL;
}

static void test_threads(void)
{
    pthread_t threads[2];
    char digests[2][64];
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, in_a_thread, digests[i]);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    EXPECT(!strncmp(digests[0], "0 ", 2) && !strcmp(digests[0], digests[1]), "%s and %s", digests[0], digests[1]);
}

int main(int argc, char **argv)
{
    if (argc != 3) return 99;
    snprintf(scenarios, sizeof scenarios, "%s", argv[1]);
    snprintf(build, sizeof build, "%s", argv[2]);
    test_one();
    test_errors();
    test_plugins();
    test_threads();
    printf("libhpsim: %d failed\n", failed);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
