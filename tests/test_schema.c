/* test_schema: the schema, the table of keys and the loader say the same: every key is in all three, with one range, one
 * list of choices, one default. */
#include <cjson/cJSON.h>
#include <math.h>

#include "scenarios/key_use.h"
#include "scenarios/keys.h"
#include "support/scenario_files.h"
#include "tests/support/run_suite.h"

static cJSON *schema;

static void setup(void)
{
    files_setup();
    char *text = scenario_schema();
    schema = cJSON_Parse(text);
    ck_assert_ptr_nonnull(schema);
    free(text);
}

static void teardown(void)
{
    cJSON_Delete(schema);
    files_teardown();
}

static const cJSON *member(const cJSON *object, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(object, name);
}

/* The schema of an object's members, through lists and alternatives. */
static const cJSON *properties(const cJSON *at)
{
    if (member(at, "items")) at = member(at, "items");
    if (member(at, "anyOf")) at = cJSON_GetArrayItem(member(at, "anyOf"), 1);
    return member(at, "properties");
}

static const cJSON *find(const char *path)
{
    const cJSON *at = schema;
    char name[64];
    while (*path && at) {
        size_t length = strcspn(path, ".[");
        snprintf(name, sizeof name, "%.*s", (int)length, path);
        at = member(properties(at), name);
        path += length;
        path += strspn(path, "[].");
    }
    return at;
}

/* The scenario that a --set path=value makes of the smallest one with a fault; NULL and an error else. */
static struct scenario *load_in(const char *workload, const char *method, const char *key_path, const char *value, struct error *ret_error)
{
    char path[128];
    bool of_fault = !strncmp(key_path, "faults[].", 9);
    snprintf(path, sizeof path, "%s%s", of_fault ? "faults.0." : "", of_fault ? key_path + 9 : key_path);
    struct override overrides[] = {{"workload", workload}, {"parallel.context.method", method}, {path, value}};
    struct scenario_options options = {.overrides_count = 3, .overrides = overrides};
    bool is_parallel = !strcmp(key_path, "faults[].site") || !strcmp(key_path, "faults[].do");
    return files_load_with(of_fault && !is_parallel ? "{\"parallel\":{},\"faults\":[{\"fault\":\"loss-not-divided\"}]}" : "{\"parallel\":{}}",
                           &options, ret_error);
}

/* The same, in a workload and with a method that read the key. */
static struct scenario *load_with(const char *key_path, const char *value, struct error *ret_error)
{
    static const char *const workloads[] = {"train", "denoise", "attention"}, *const methods[] = {"ring", "usp"};
    const struct key *key = key_find(key_path);
    int workload = 0, method = 0;
    while (workload < 2 && !key_is_read(key, (enum workload)workload, NULL)) workload++;
    while (method < 1 && !key_is_read(key, (enum workload)workload, methods[method])) method++;
    return load_in(workloads[workload], methods[method], key_path, value, ret_error);
}

static void walk(const cJSON *at, const char *path, int *count)
{
    for (const cJSON *item = properties(at) ? properties(at)->child : NULL; item; item = item->next) {
        char below[128];
        bool is_list = member(at, "items") != NULL;
        snprintf(below, sizeof below, "%s%s%s%s", path, is_list ? "[]" : "", *path ? "." : "", item->string);
        ck_assert_msg(key_find(below), "%s is in the schema only", below);
        ck_assert_msg(cJSON_IsString(member(item, "description")), "%s", below);
        (*count)++;
        walk(item, below, count);
    }
}

/* Every key of the table is in the schema with its default, and the schema has no other. */
START_TEST(same_keys)
{
    int count = 0;
    walk(schema, "", &count);
    ck_assert_int_eq(count, key_count());
    for (int i = 0; i < key_count(); i++) {
        const struct key *key = key_at(i);
        const cJSON *here = find(key->path);
        ck_assert_msg(here, "%s", key->path);
        ck_assert_msg((*key->fallback != '=') == (member(here, "default") != NULL), "%s", key->path);
        bool is_section = key->type == KEY_SECTION;
        ck_assert_msg(!is_section || !strcmp(key->path, "precision") || cJSON_IsFalse(member(here, "additionalProperties")), "%s", key->path);
    }
    ck_assert(cJSON_IsFalse(member(schema, "additionalProperties")));
    ck_assert_str_eq(cJSON_GetArrayItem(member(schema, "required"), 0)->valuestring, "parallel");
}
END_TEST

/* What a schema declares as default is accepted, and changes nothing. */
START_TEST(defaults)
{
    struct error error;
    struct scenario *plain = files_accept("{\"parallel\":{}}", NULL);
    for (int i = 0; i < key_count(); i++) {
        const struct key *key = key_at(i);
        const cJSON *value = member(find(key->path), "default");
        if (!value || !strncmp(key->path, "faults", 6)) continue;
        char *text = cJSON_PrintUnformatted(value);
        struct scenario *s = load_in("train", "ring", key->path, text, &error);
        if (!s) files_report(key->path, &error);
        ck_assert_msg(!memcmp(&s->config.model, &plain->config.model, sizeof s->config.model), "%s", key->path);
        ck_assert_msg(!memcmp(&s->config.layout, &plain->config.layout, sizeof s->config.layout), "%s", key->path);
        ck_assert_msg(!memcmp(&s->config.train, &plain->config.train, sizeof s->config.train), "%s", key->path);
        scenario_free(s);
        cJSON_free(text);
    }
    scenario_free(plain);
}
END_TEST

/* Each choice of the schema is accepted, or known and refused as not there yet; others are refused as unknown. */
START_TEST(choices)
{
    int there = 0, later = 0;
    for (int i = 0; i < key_count(); i++) {
        const struct key *key = key_at(i);
        const cJSON *choice = key->type == KEY_CHOICE ? member(find(key->path), "enum")->child : NULL;
        bool of_fault = !strncmp(key->path, "faults[].", 9) && strcmp(key->path, "faults[].in") != 0;
        bool of_precision = !strncmp(key->path, "precision.", 10);
        for (; choice && !of_fault; choice = choice->next) {
            struct error error;
            struct scenario *s = load_with(key->path, choice->valuestring, &error);
            bool mixed = !s && of_precision && strstr(error.message, "mixed precision");
            bool refused = !s && strstr(error.message, "is not there yet; there is:") && strstr(error.message, choice->valuestring);
            ck_assert_msg(s || mixed || refused, "%s=%s: %s", key->path, choice->valuestring, error.message);
            there += s != NULL;
            later += refused;
            scenario_free(s);
        }
        if (key->type == KEY_CHOICE && !of_fault) {
            struct error error;
            ck_assert_msg(!load_with(key->path, "quux", &error) && strstr(error.message, "'quux' found; allowed: '"), "%s", key->path);
        }
    }
    ck_assert_int_ge(there, 40);
    ck_assert_int_ge(later, 5);
}
END_TEST

static void try_number(const struct key *key, double value, bool in_range)
{
    char text[40];
    struct error error = {0};
    snprintf(text, sizeof text, "%.17g", value);
    struct scenario *s = load_with(key->path, text, &error);
    bool out_of_range = !s && strstr(error.message, " found; allowed: ") != NULL;
    ck_assert_msg(out_of_range == !in_range, "%s = %s: %s", key->path, text, s ? "accepted" : error.message);
    scenario_free(s);
}

/* minimum and maximum of the schema are the loader's: one step further is out of range, they are not. */
START_TEST(ranges)
{
    int count = 0;
    for (int i = 0; i < key_count(); i++) {
        const struct key *key = key_at(i);
        const cJSON *here = find(key->path), *low = member(here, "minimum"), *high = member(here, "maximum");
        bool integer = key->type == KEY_INTEGER;
        if ((!integer && key->type != KEY_REAL) || !low || !strncmp(key->path, "faults", 6)) continue;
        try_number(key, low->valuedouble, true);
        try_number(key, high->valuedouble, true);
        try_number(key, low->valuedouble - 1, false);
        try_number(key, high->valuedouble * 1.01 + 1, false);
        if (integer && high->valuedouble > 1) try_number(key, low->valuedouble + 0.5, false);
        count++;
    }
    ck_assert_int_ge(count, 45);
}
END_TEST

/* A value of another type is refused at its key, whatever the key is. */
START_TEST(types)
{
    for (int i = 0; i < key_count(); i++) {
        const struct key *key = key_at(i);
        struct error error;
        bool section = key->type == KEY_SECTION || key->type == KEY_SECTIONS;
        struct scenario *s = load_with(key->path, section ? "true" : "{\"x\": 1}", &error);
        ck_assert_msg(!s && error.kind == ERROR_INPUT, "%s", key->path);
        char path[128];
        bool of_fault = !strncmp(key->path, "faults[].", 9);
        snprintf(path, sizeof path, "%s%s", of_fault ? "faults[0]." : "", of_fault ? key->path + 9 : key->path);
        ck_assert_str_eq(error.path, path);
    }
}
END_TEST

/* Sections may be empty, and null stands only where it has a meaning. */
START_TEST(empty_and_null)
{
    for (int i = 0; i < key_count(); i++) {
        const struct key *key = key_at(i);
        struct error error;
        struct scenario *s = NULL;
        if (key->type == KEY_SECTION || key->type == KEY_SECTIONS) {
            s = load_with(key->path, key->type == KEY_SECTION ? "{}" : "[]", &error);
            if (!s) files_report(key->path, &error);
            scenario_free(s);
        }
        s = load_with(key->path, "null", &error);
        ck_assert_msg((s != NULL) == key->nullable, "%s", key->path);
        scenario_free(s);
    }
}
END_TEST

/* The contract's own example is known key by key. */
START_TEST(contract_example)
{
    const char *text =
        "{\"hpsim\": 1, \"name\": \"fault_loss_divided_twice\", \"seed\": 7, \"workload\": \"train\", \"model\": {"
        "\"arch\": \"gpt\", \"layers\": 8, \"dim\": 64, \"heads\": 4, \"kv_heads\": 4, \"ffn\": 176, \"vocab\": 256, \"seq\": 64,"
        "\"attention\": \"mha\", \"causal\": true, \"rope\": true, \"bias\": false, \"tie_embeddings\": false,"
        "\"mla\": {\"q_lora_rank\": 32, \"kv_lora_rank\": 16, \"head_dim\": 16},"
        "\"moe\": {\"experts\": %d, \"top_k\": 4, \"expert_ffn\": 64, \"shared_ffn\": 128, \"dense_layers\": [0], \"score\": \"sigmoid\","
        "\"normalize\": \"softmax\", \"routed_scaling\": 2.5, \"aux_loss_coeff\": 0.0, \"balance\": \"none\", \"capacity_factor\": null}},"
        "\"data\": {\"text\": \"corpus.txt\", \"tokenizer\": \"bytes\", \"packing\": \"documents\"},"
        "\"train\": {\"steps\": 4, \"global_batch\": 16, \"loss_normalization\": \"token_mean\", \"optimizer\": {\"kind\": \"adamw\","
        "\"lr\": 0.001, \"betas\": [0.9, 0.95], \"eps\": 1e-8, \"weight_decay\": 0.1}, \"grad_clip\": 1.0},"
        "\"parallel\": {\"pp\": 4, \"dp_replicate\": 1, \"dp_shard\": 2, \"cp\": 1, \"tp\": 1, \"ep\": 1, \"etp\": 1,"
        "\"sequence_parallel\": false, \"pipeline\": {\"schedule\": \"1F1B\", \"microbatches\": 8, \"chunks\": 1, \"csv\": null},"
        "\"fsdp\": {\"reshard_after_forward\": true, \"reduce_op\": \"avg\", \"sync\": \"last_microbatch\", \"zero\": 3},"
        "\"context\": {\"method\": \"ring\", \"layout\": \"zigzag\"}, \"collectives\": {\"all_reduce\": \"ring\"}},"
        "\"precision\": {\"param\": \"fp32\", \"compute\": \"fp32\", \"reduce\": \"fp32\", \"accumulate\": \"fp32\", \"softmax\": \"fp32\","
        "\"logits\": \"fp32\", \"residual\": \"fp32\"}, \"recompute\": \"none\", \"machine\": {\"ranks_per_node\": 8, \"tflops\": 400,"
        "\"intra\": {\"latency_us\": 3, \"gb_per_s\": 400}, \"inter\": {\"latency_us\": 8, \"gb_per_s\": 50}},"
        "\"faults\": [{\"fault\": \"loss-divided-twice\", \"at\": {\"step\": 0}}],"
        "\"expect\": {\"verdict\": \"diverged\", \"component\": \"pp.loss\"}}";
    char filled[4096];
    snprintf(filled, sizeof filled, text, 16);
    struct scenario *s = files_accept(filled, NULL);
    ck_assert(s->faults[0].step.count == 1 && s->faults[0].step.values[0] == 0 && s->config.layout.microbatches == 8);
    ck_assert(s->config.model.moe.experts == 16 && s->config.model.moe.capacity_factor == 0);
    scenario_free(s);
}
END_TEST

/* "--set a=b --fault c" as options; the texts stay in `words`, which is cut up. */
static struct scenario *load_example(char *words, struct error *ret_error)
{
    struct override overrides[4];
    const char *faults[2];
    struct scenario_options options = {.overrides = overrides, .faults = faults};
    for (char *word = strtok(words, " "); word; word = strtok(NULL, " ")) {
        char *value = strtok(NULL, " ");
        ck_assert_ptr_nonnull(value);
        if (*value == '\'') { /* the shell's quotes */
            value++;
            value[strlen(value) - 1] = 0;
        }
        if (!strcmp(word, "--fault")) {
            faults[options.faults_count++] = value;
            continue;
        }
        ck_assert_str_eq(word, "--set");
        char *equals = strchr(value, '=');
        ck_assert_ptr_nonnull(equals);
        *equals = 0;
        overrides[options.overrides_count++] = (struct override){value, equals + 1};
    }
    return files_load_with("{\"parallel\":{}}", &options, ret_error);
}

/* The example of every key is accepted, and names its key; what is not there yet has the default as its example, or none. */
START_TEST(example_values)
{
    int changed = 0;
    for (int i = 0; i < key_count(); i++) {
        const struct key *key = key_at(i);
        char text[KEY_WORDS], whole[KEY_WORDS];
        struct error error = {0};
        key_example(key, text);
        bool is_section = key->type == KEY_SECTION || key->type == KEY_SECTIONS;
        ck_assert_msg(text[0] || is_section || (key->there && !*key->there), "%s has no example", key->path);
        if (!text[0] || !strcmp(key->path, "model.weights")) continue;
        memcpy(whole, text, sizeof whole);
        const char *last = strrchr(key->path, '.');
        bool names_it = strstr(text, last ? last + 1 : key->path) || !strncmp(key->path, "faults", 6);
        ck_assert_msg(names_it, "%s: %s", key->path, text);
        struct scenario *s = load_example(text, &error);
        if (!s) files_report(whole, &error);
        ck_assert_msg(s, "%s: %s", key->path, whole);
        changed += *key->fallback == '=' || !strstr(whole, key->fallback);
        scenario_free(s);
    }
    ck_assert_int_gt(changed, 60);
}
END_TEST

/* What a workload or a method does not read is refused where it says something, and accepted where it says what holds anyway. */
START_TEST(nothing_is_ignored)
{
    static const char *const workloads[] = {"train", "denoise", "attention"}, *const methods[] = {"ring", "all_gather", "ulysses", "usp"};
    int refused = 0, plain = 0;
    for (int i = 0; i < key_count(); i++) {
        const struct key *key = key_at(i);
        char words[KEY_WORDS], text[160];
        const char *value = strrchr(key_example(key, words), '=');
        if (!value || strchr(key->path, '[') || key->nullable || !strcmp(key->path, "model.weights")) continue;
        value = strstr(words, key->path) ? strstr(words, key->path) + strlen(key->path) + 1 : value + 1;
        char given[KEY_WORDS];
        snprintf(given, sizeof given, "%.*s", (int)strcspn(value, " '"), value);
        for (int k = 0; k < 12; k++) {
            if (key_is_read(key, (enum workload)(k / 4), methods[k % 4])) continue;
            ck_assert_msg(key_used_by(key, text, sizeof text)[0], "%s", key->path);
            struct error error = {0};
            struct override overrides[] = {{"workload", workloads[k / 4]}, {"parallel.context.method", methods[k % 4]}, {key->path, given}};
            struct scenario *s = files_load_with("{\"parallel\":{}}", &(struct scenario_options){.overrides_count = 3, .overrides = overrides}, &error);
            size_t quote = *key->fallback == '"', length = strlen(given);
            const char *last = strstr(key->fallback, "else ");
            bool none = *key->fallback == '=' && ((last && !strcmp(last + 5, given)) || (key->low == 1 && !strcmp(given, "1")) || !strcmp(given, "false") || !strcmp(given, "0") || !strcmp(given, "null"));
            bool is_default = none || (*key->fallback != '=' && !strncmp(given, key->fallback + quote, length) && strlen(key->fallback) == length + 2 * quote);
            if (s) plain++;
            else refused++;
            ck_assert_msg(s ? is_default : strstr(error.message, "does not read") && strstr(error.message, key->path) && strstr(error.message, "read by"), "%s=%s with %s, %s: %s", key->path, given,
                          workloads[k / 4], methods[k % 4], s ? "accepted" : error.message);
            scenario_free(s);
            if (*key->fallback == '=') continue;
            overrides[2].value = key->fallback;
            s = files_load_with("{\"parallel\":{}}", &(struct scenario_options){.overrides_count = 3, .overrides = overrides}, &error);
            ck_assert_msg(s || !strstr(error.message, "does not read"), "%s=%s, its default: %s", key->path, key->fallback, error.message);
            scenario_free(s);
        }
    }
    ck_assert_int_gt(refused, 200);
}
END_TEST

START_TEST(looked_up)
{
    ck_assert_str_eq(key_look_up("parallel.fsdp.zero")->path, "parallel.fsdp.zero");
    ck_assert_str_eq(key_look_up("faults.0.at.step")->path, "faults[].at.step");
    ck_assert_str_eq(key_look_up("faults[3].at")->path, "faults[].at");
    ck_assert_str_eq(key_look_up("faults")->path, "faults");
    for (int i = 0; i < key_count(); i++) ck_assert_ptr_eq(key_look_up(key_at(i)->path), key_at(i));
    static const struct { const char *typed, *hint; } wrong[] = {
        {"layout.zero", "did you mean parallel.fsdp.zero?"}, {"zreo", "did you mean parallel.fsdp.zero?"},
        {"head_dim", "model.head_dim or model.mla.head_dim"}, {"parallel.fspd", "did you mean parallel.fsdp?"},
        {"qqqqqqqq", "hpsim schema --markdown lists all"}, {"", "lists all"}, {"..", "lists all"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        char hint[512];
        ck_assert_ptr_null(key_look_up(wrong[i].typed));
        key_hint(wrong[i].typed, hint, sizeof hint);
        ck_assert_msg(strstr(hint, wrong[i].hint), "%s: %s", wrong[i].typed, hint);
    }
    char shorter[16];
    key_hint("head_dim", shorter, sizeof shorter);
    ck_assert_uint_lt(strlen(shorter), sizeof shorter);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("schema");
    TCase *tcase = tcase_create("keys");
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_set_timeout(tcase, 120);
    tcase_add_test(tcase, same_keys);
    tcase_add_test(tcase, defaults);
    tcase_add_test(tcase, choices);
    tcase_add_test(tcase, nothing_is_ignored);
    tcase_add_test(tcase, ranges);
    tcase_add_test(tcase, types);
    tcase_add_test(tcase, empty_and_null);
    tcase_add_test(tcase, contract_example);
    tcase_add_test(tcase, example_values);
    tcase_add_test(tcase, looked_up);
    suite_add_tcase(suite, tcase);
    return run_suite(suite, CK_NOFORK);
}
