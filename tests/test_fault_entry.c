/* test_fault_entry: entries of "faults" and --fault against the catalogue and the registries, and what they arm in each
 * of the two runs. */
#include "model/deviations.h"
#include "scenarios/fault_entry.h"
#include "support/scenario_files.h"
#include "tests/support/run_suite.h"

static const char base[] = "{\"parallel\":{\"pp\":4,\"dp_shard\":3,\"pipeline\":{\"microbatches\":5}},\"train\":{\"global_batch\":15},"
                           "\"model\":{\"dim\":24,\"heads\":3,\"seq\":22,\"layers\":8}%s}";

static const char *with_faults(const char *faults)
{
    static char text[1024], member[800];
    snprintf(member, sizeof member, ",\"faults\":[%s]", faults);
    snprintf(text, sizeof text, base, *faults ? member : "");
    return text;
}

static struct scenario *accept_option(const char *fault)
{
    struct scenario_options options = {.faults_count = 1, .faults = &fault};
    return files_accept(with_faults(""), &options);
}

static struct site_plan *plan_of(const struct scenario *scenario, bool standalone)
{
    struct error error = {0};
    struct site_plan *plan = scenario_plan(scenario, standalone, standalone ? 1 : layout_ranks(&scenario->config.layout), &error);
    ck_assert_msg(plan, "%s", error.message);
    return plan;
}

static struct armed armed_by(const char *fault)
{
    struct scenario *s = accept_option(fault);
    struct site_plan *plan = plan_of(s, false);
    ck_assert_int_eq(plan->armed_count, s->faults[0].fault ? s->faults[0].fault->parts_count : 1); /* a place each */
    struct armed armed = plan->armed[0];
    site_plan_free(plan);
    scenario_free(s);
    return armed;
}

static bool is_only(const struct at_list *list, int value)
{
    return list->count == 1 && list->values[0] == value;
}

/* ---- registries ---- */

/* Every fault is whole: its name is its file's, its sites, deviations, arguments and places exist. */
START_TEST(catalogue)
{
    ck_assert_int_ge(fault_count(), 17);
    for (int i = 0; i < fault_count(); i++) {
        const struct fault *fault = fault_at(i);
        ck_assert_ptr_eq(fault_find(fault->name), fault);
        ck_assert_msg(fault->component && fault->injected && fault->visible && fault->checks && fault->source && fault->scenario &&
                      fault->signature && fault->parts_count >= 1 && fault->parts_count <= 3, "%s", fault->name);
        for (int p = 0; p < fault->parts_count; p++) {
            const struct site *site = site_registry_find(fault->parts[p].site);
            ck_assert_msg(site, "%s: %s", fault->name, fault->parts[p].site);
            const struct deviation *deviation = deviation_registry_find(fault->parts[p].deviation, site->kind);
            ck_assert_msg(deviation && deviation_applies(deviation, site), "%s: %s", fault->name, fault->parts[p].deviation);
        }
        struct scenario *s = accept_option(fault->name);
        struct site_plan *plan = plan_of(s, false);
        ck_assert_msg(plan->armed_count >= fault->parts_count, "%s", fault->name);
        site_plan_free(plan);
        scenario_free(s);
    }
    ck_assert_ptr_null(fault_find("loss"));
    ck_assert_ptr_null(fault_at(-1));
    ck_assert_ptr_null(fault_at(fault_count()));
}
END_TEST

/* Every deviation that applies to a site can be given as site:deviation, every other is refused with the reason; with no
 * argument each takes a default, but those whose words say that one is required. */
START_TEST(all_primitives)
{
    int taken = 0, refused = 0;
    for (int i = 0; i < site_registry_count(); i++) {
        for (int j = 0; j < deviation_registry_count(); j++) {
            const struct site *site = site_registry_at(i);
            const struct deviation *deviation = deviation_registry_at(j);
            char name[160];
            const char *option = name;
            struct scenario_options options = {.faults_count = 1, .faults = &option};
            struct error error;
            char plain[128], words[FAULT_ARGUMENT_TEXT];
            snprintf(plain, sizeof plain, "%s:%s", site->name, deviation->name);
            bool required = strstr(fault_argument_words(deviation, words), "required") != NULL;
            snprintf(name, sizeof name, "%s%s", plain, required ? "@format=fp16" : "");
            bool applies = deviation_applies(deviation, site), shared = deviation_registry_find(deviation->name, site->kind) != NULL;
            struct scenario *s = files_load_with(with_faults(""), &options, &error);
            if (applies) {
                ck_assert_msg(s && s->faults[0].site == site && s->faults[0].deviation == deviation, "%s", name);
                ck_assert_str_eq(s->faults[0].name, plain);
                site_plan_free(plan_of(s, false));
                taken++;
            } else if (deviation->kind == site->kind) {
                ck_assert_msg(!s && strstr(error.message, "needs the facet"), "%s: %s", name, error.message);
                refused++;
            } else if (!shared) {
                ck_assert_msg(!s && strstr(error.message, "is for sites of kind"), "%s: %s", name, error.message);
                refused++;
            }
            scenario_free(s);
        }
    }
    ck_assert_int_gt(taken, 80);
    ck_assert_int_gt(refused, 150);
}
END_TEST

/* ---- reading ---- */

/* The JSON form and the option form of one fault are the same. */
START_TEST(both_forms)
{
    struct scenario *a = files_accept(with_faults("{\"site\":\"pp.loss.scale\",\"do\":\"times\",\"factor\":\"N/(n*M)\",\"in\":\"both\",\"once\":true,"
        "\"at\":{\"rank\":[6,7],\"stage\":3,\"step\":[0],\"microbatch\":2,\"layer\":1,\"hop\":4,\"param\":\"layers.1.*\"}}"), NULL);
    struct scenario *b = accept_option("pp.loss.scale:times@factor=N/(n*M),in=both,once,rank=6+7,stage=3,step=0,microbatch=2,layer=1,hop=4,"
                                       "param=layers.1.*");
    const struct fault_entry *x = &a->faults[0], *y = &b->faults[0];
    for (const struct fault_entry *e = x; e; e = e == x ? y : NULL) {
        ck_assert(e->rank.count == 2 && e->rank.values[0] == 6 && e->rank.values[1] == 7 && is_only(&e->stage, 3) && is_only(&e->step, 0));
        ck_assert(is_only(&e->microbatch, 2) && is_only(&e->layer, 1) && is_only(&e->hop, 4) && !strcmp(e->param, "layers.1.*"));
        ck_assert(e->once && e->in == FAULT_IN_BOTH && !strcmp(e->text, "N/(n*M)") && !e->has_value && !e->fault);
        ck_assert(e->site == x->site && e->deviation == x->deviation && !strcmp(e->name, "pp.loss.scale:times"));
    }
    scenario_free(a);
    scenario_free(b);
    a = files_accept(with_faults("{\"fault\":\"clip.norm_reduce:wrong-group\",\"group\":\"pp\"},{\"fault\":\"loss-divided-twice\"}"), NULL);
    ck_assert(a->faults_count == 2 && !strcmp(a->faults[0].text, "pp") && a->faults[1].fault == fault_find("loss-divided-twice"));
    scenario_free(a);
}
END_TEST

struct refused { const char *text, *path, *words; };

START_TEST(refused_entries)
{
    static const struct refused cases[] = {
        {"{}", "faults[0]", "'fault' is missing; allowed: 'fault' alone, or 'site' and 'do'"},
        {"{\"site\":\"pp.loss.scale\"}", "faults[0]", "'do' is missing"},
        {"{\"do\":\"times\"}", "faults[0]", "'site' is missing"},
        {"{\"fault\":\"loss-not-divided\",\"do\":\"times\"}", "faults[0].fault", "both given"},
        {"{\"fault\":\"loss-divided-twise\"}", "faults[0].fault", "did you mean 'loss-divided-twice'?"},
        {"{\"fault\":\"\"}", "faults[0]", "'fault' is missing"},
        {"{\"fault\":\"quux\"}", "faults[0].fault", "unknown fault 'quux'"},
        {"{\"fault\":\"pp.loss.scale\"}", "faults[0].fault", "'pp.loss.scale' is a site; a deviation is missing"},
        {"{\"site\":\"pp.loss.scael\",\"do\":\"times\"}", "faults[0].site", "did you mean 'pp.loss.scale'?"},
        {"{\"site\":\"pp.loss.scale\",\"do\":\"tiems\"}", "faults[0].do", "unknown deviation 'tiems'; did you mean 'times'?"},
        {"{\"site\":\"pp.loss.scale\",\"do\":\"skip\"}", "faults[0].do", "'skip' is for sites of kind communication; 'pp.loss.scale' is of kind factor"},
        {"{\"site\":\"pp.grad.clear\",\"do\":\"off-by-one\"}", "faults[0].do", "needs the facet compares-index; the site has: guarded"},
        {"{\"fault\":\"loss-not-divided\",\"at\":{\"stp\":1}}", "faults[0].at.stp", "did you mean 'step'?"},
        {"{\"fault\":\"loss-not-divided\",\"at\":{\"step\":-1}}", "faults[0].at.step", "-1 found"},
        {"{\"fault\":\"loss-not-divided\",\"at\":{\"step\":[0,0.5]}}", "faults[0].at.step[1]", "0.5 found"},
        {"{\"fault\":\"loss-not-divided\",\"at\":{\"step\":[]}}", "faults[0].at.step", "a list of 0 found"},
        {"{\"fault\":\"loss-not-divided\",\"at\":{\"step\":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]}}",
         "faults[0].at.step", "a list of 33 found"},
        {"{\"fault\":\"loss-not-divided\",\"at\":{\"expert\":1}}", "faults[0].at.expert", "not there yet; there is: leaving it out"},
        {"{\"fault\":\"loss-not-divided\",\"at\":7}", "faults[0].at", "7 found"},
        {"{\"fault\":\"loss-not-divided\",\"in\":\"serial\"}", "faults[0].in", "'parallel', 'standalone' or 'both'"},
        {"{\"fault\":\"loss-not-divided\",\"group\":\"pp\"}", "faults[0].group", "'loss-not-divided' takes no 'group'; allowed: 'factor', 'value'"},
        {"{\"fault\":\"pp-grad-cleared\",\"value\":2}", "faults[0].value", "takes no 'value'; allowed: nothing"},
        {"{\"fault\":\"pp.loss.scale:times\",\"factor\":\"1/\"}", "faults[0].factor", "factor '1/'"},
        {"{\"fault\":\"pp.loss.scale:times\",\"factor\":\"1/Q\"}", "faults[0].factor", "'Q' is none of M, D"},
        {"{\"fault\":\"pp.loss.scale:times\",\"factor\":\"1/0\"}", "faults[0].factor", "not a finite number"},
        {"{\"fault\":\"pp.loss.scale:times\",\"factor\":true}", "faults[0].factor", "true found; allowed: a number, or an expression"},
        {"{\"fault\":\"pp.loss.scale:times\",\"factor\":2,\"value\":2}", "faults[0].value", "both given"},
        {"{\"fault\":\"fsdp.unshard:scale\",\"factor\":\"1/N\"}", "faults[0].factor", "reads the data's counts"},
        {"{\"fault\":\"clip.norm_reduce:wrong-group\",\"group\":\"tp\"}", "faults[0].group", "'tp' found; allowed: 'world', 'pp'"},
        {"{\"fault\":\"clip.norm_reduce:wrong-op\",\"op\":\"mean\"}", "faults[0].op", "'sum', 'avg' or 'max'"},
        {"{\"fault\":\"fsdp.unshard:wrong-format\",\"format\":\"fp8\"}", "faults[0].format", "'fp8' found"},
        {"{\"fault\":\"fsdp.unshard:wrong-format\"}", "faults[0]", "'fsdp.unshard:wrong-format' needs 'format'; allowed: 'fp64'"},
        {"{\"site\":\"pp.send_grad\",\"do\":\"wrong-format\"}", "faults[0]", "'pp.send_grad:wrong-format' needs 'format'"},
        {"{\"fault\":\"data.sample:shift\",\"value\":1e300}", "faults[0].value", "an integer from -1000000000"},
        {"{\"fault\":\"loss-not-divided\",\"factr\":2}", "faults[0].factr", "did you mean 'factor'?"},
        {"{\"fault\":\"loss-not-divided\",\"step\":2}", "faults[0].step", "did you mean 'faults[].at.step'?"},
        {"{\"fault\":\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"}", "faults[0].fault", "a string of at most 63 bytes"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct error error = files_refuse(with_faults(cases[i].text), NULL, cases[i].path, cases[i].words);
        ck_assert_int_gt(error.column, 100);
    }
}
END_TEST

START_TEST(refused_options)
{
    static const struct refused cases[] = {
        {"", "", "a name is missing"}, {"@step=1", "", "a name is missing"},
        {"loss-not-divided@", "", "'' is not of the form key=value"},
        {"loss-not-divided@step", "", "'step' is not of the form key=value"},
        {"loss-not-divided@step=", "at.step", "'' found"},
        {"loss-not-divided@step=x", "at.step", "'x' found"},
        {"loss-not-divided@step=6+", "at.step[1]", "'' found"},
        {"loss-not-divided@step=6+x", "at.step[1]", "'x' found"},
        {"fsdp.unshard:wrong-format@rank=1", "", "'fsdp.unshard:wrong-format' needs 'format'"},
        {"loss-not-divided@step=1,step=2", "step", "'step' is given twice"},
        {"loss-not-divided@stp=1", "", "did you mean 'step'?"},
        {"loss-not-divided@fault=x", "", "unknown key 'fault'"},
        {"loss-not-divided@at.step=1", "", "unknown key 'at.step'"},
        {"loss-not-dived@step=1", "fault", "did you mean 'loss-not-divided'?"},
        {"pp.loss.scale:", "fault", "unknown deviation ''"},
        {":times", "fault", "unknown site ''"},
        {"loss-not-divided@once=maybe", "once", "'maybe' found; allowed: true or false"},
        {"loss\nnot", "", "without control characters"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct scenario_options options = {.faults_count = 1, .faults = &cases[i].text};
        struct error error = files_refuse(with_faults(""), &options, cases[i].path, cases[i].words);
        ck_assert_msg(!strncmp(error.file, "--fault ", 8) && error.line == 0, "%s: %s", cases[i].text, error.file);
    }
    const char *many[FAULTS_MAX];
    for (int i = 0; i < FAULTS_MAX; i++) many[i] = "pp-grad-cleared";
    struct scenario_options options = {.faults_count = FAULTS_MAX, .faults = many};
    files_refuse(with_faults("{\"fault\":\"loss-not-divided\"}"), &options, "faults", "at most 16 are allowed");
    scenario_free(files_accept(with_faults(""), &options));
}
END_TEST

/* What was given is written as it was given, in the order of the keys; the words of an argument name the key that takes it. */
START_TEST(written_again)
{
    static const char *const texts[] = {
        "loss-divided-twice", "coll-wrong-root@stage=1+2,step=3,index=2", "pp.loss.scale:times@rank=6+7,factor=N/(n*M),once,in=both",
        "pp.loss.scale:set@value=0.125", "layer.weight_gradient:perturb@layer=3,param=layers.3.*,value=-0.5,in=standalone",
        "clip.norm_reduce:wrong-group@group=pp", "tied.grad_reduce:wrong-op@op=max", "fsdp.unshard:wrong-format@microbatch=4,format=fp16",
        "fsdp.reduce_grad:drop-peer@index=1", "fsdp.reduce_grad:round-hops@hop=5,format=fp16", "fsdp.reduce_grad:premultiply@value=3",
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        char text[FAULT_ENTRY_TEXT], words[FAULT_ARGUMENT_TEXT];
        struct scenario *s = accept_option(texts[i]);
        const struct fault_entry *entry = &s->faults[0];
        ck_assert_str_eq(fault_entry_write(entry, text), texts[i]);
        if (entry->deviation && entry->argument)
            ck_assert_msg(strstr(fault_argument_words(entry->deviation, words), entry->argument), "%s: %s", texts[i], words);
        scenario_free(s);
    }
    struct armed a = armed_by("fsdp.reduce_grad:drop-peer@index=1");
    ck_assert_str_eq(a.text, "1");
    a = armed_by("fsdp.reduce_grad:premultiply");
    ck_assert(!a.text[0] && a.value == 0);
}
END_TEST

/* ---- plans ---- */

/* The catalogue's places hold for what an entry leaves open: pp 4, 5 micro-batches, 8 layers. */
START_TEST(default_places)
{
    struct armed a = armed_by("pp-microbatch-grad-lost");
    ck_assert(a.stage.count == 3 && a.stage.values[0] == 1 && a.stage.values[2] == 3);
    a = armed_by("pp-microbatch-grad-lost@stage=0");
    ck_assert(is_only(&a.stage, 0));
    a = armed_by("pp-microbatch-grad-lost@rank=2");
    ck_assert(a.stage.count == 0 && is_only(&a.rank, 2));
    a = armed_by("pp-stale-grad-leak@step=1");
    ck_assert(is_only(&a.microbatch, 4) && is_only(&a.step, 1));
    a = armed_by("pp-stale-grad-leak@microbatch=2+3");
    ck_assert(a.microbatch.count == 2 && a.microbatch.values[1] == 3);
    a = armed_by("fsdp-stale-prefetch");
    ck_assert(is_only(&a.layer, 4));
    a = armed_by("fsdp-stale-prefetch@layer=7");
    ck_assert(is_only(&a.layer, 7));
    a = armed_by("pp-stage-never-syncs");
    ck_assert(is_only(&a.stage, 1));
    a = armed_by("loss-divided-twice");
    ck_assert(a.stage.count == 0 && !strcmp(a.text, "1/M") && !strcmp(a.site->name, "pp.loss.scale") && a.fault == 0);
}
END_TEST

/* Arguments: the entry's own, else the catalogue's, else a default; expressions become numbers where the floor below has none. */
START_TEST(arguments)
{
    struct armed a = armed_by("loss-divided-twice@factor=1/D");
    ck_assert_str_eq(a.text, "1/D");
    a = armed_by("loss-divided-twice@factor=0.25");
    ck_assert(!a.text[0] && a.value == 0.25);
    a = armed_by("pp.loss.scale:times");
    ck_assert(!a.text[0] && a.value == 2);
    a = armed_by("pp.loss.scale:set@value=0");
    ck_assert(!a.text[0] && a.value == 0);
    a = armed_by("fsdp.unshard:scale@factor=D/(M*P)");
    ck_assert(!a.text[0] && a.value == 3.0 / 20.0);
    a = armed_by("fsdp.unshard:scale");
    ck_assert(a.value == 2);
    a = armed_by("tied.grad_reduce:wrong-op@op=max");
    ck_assert_str_eq(a.text, "max");
    a = armed_by("fsdp.unshard:corrupt@index=7");
    ck_assert_str_eq(a.text, "7");
    a = armed_by("data.sample:shift@value=-3");
    ck_assert(a.value == -3);
    a = armed_by("loss.report_reduce:wrong-group@once=true,group=dp");
    ck_assert(a.once && !strcmp(a.text, "dp"));
}
END_TEST

/* "in" says in which run a fault is armed; a place that a layout lacks is armed where nothing is. */
START_TEST(runs)
{
    const struct { const char *fault; int parallel, standalone; } cases[] = {
        {"pp-grad-cleared", 1, 0}, {"pp-grad-cleared@in=standalone", 0, 1}, {"pp-grad-cleared@in=both", 1, 1},
    };
    for (int i = 0; i < 3; i++) {
        struct scenario *s = accept_option(cases[i].fault);
        struct site_plan *parallel = plan_of(s, false), *standalone = plan_of(s, true);
        ck_assert_int_eq(parallel->armed_count, cases[i].parallel);
        ck_assert_int_eq(standalone->armed_count, cases[i].standalone);
        site_plan_free(parallel);
        site_plan_free(standalone);
        scenario_free(s);
    }
    struct scenario *s = accept_option("pp-microbatch-grad-lost@in=both");
    struct site_plan *standalone = plan_of(s, true);
    const struct site *site = standalone->armed[0].site;
    struct where where = {.rank = 0, .stage = 0, .microbatch = 0, .layer = -1, .hop = -1};
    ck_assert_ptr_null(site_peek(standalone, site, where));
    where.stage = -1;
    ck_assert_ptr_null(site_peek(standalone, site, where));
    site_plan_free(standalone);
    scenario_free(s);
}
END_TEST

/* More stages than a list holds are spread over several deviations of one fault; each stage but the first is due. */
START_TEST(many_stages)
{
    const char *fault = "pp-microbatch-grad-lost";
    struct scenario *s = files_accept("{\"parallel\":{\"pp\":75},\"model\":{\"layers\":75,\"dim\":8,\"heads\":2,\"ffn\":8,\"seq\":5}}",
                                      &(struct scenario_options){.faults_count = 1, .faults = &fault});
    struct site_plan *plan = plan_of(s, false);
    ck_assert_int_eq(plan->armed_count, 2 * 3); /* of its two places */
    for (int stage = 0; stage < 75; stage++) {
        struct where where = {.rank = stage, .stage = stage, .layer = -1, .hop = -1};
        const struct armed *due = site_peek(plan, plan->armed[0].site, where);
        ck_assert((due != NULL) == (stage > 0) && (!due || due->fault == 0));
    }
    site_plan_free(plan);
    scenario_free(s);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("fault_entry");
    TCase *tcase = tcase_create("faults");
    tcase_add_checked_fixture(tcase, files_setup, files_teardown);
    tcase_set_timeout(tcase, 120);
    tcase_add_test(tcase, catalogue);
    tcase_add_test(tcase, all_primitives);
    tcase_add_test(tcase, both_forms);
    tcase_add_test(tcase, refused_entries);
    tcase_add_test(tcase, refused_options);
    tcase_add_test(tcase, written_again);
    tcase_add_test(tcase, default_places);
    tcase_add_test(tcase, arguments);
    tcase_add_test(tcase, runs);
    tcase_add_test(tcase, many_stages);
    suite_add_tcase(suite, tcase);
    return run_suite(suite, CK_NOFORK);
}
