/* The command line: what is understood, what is refused, and that a refusal names the way out. */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include "scenarios/spelling.h"
#include "tools/options.h"
#include "tools/report/number.h"

enum { WORDS_MAX = 12 };
static const uint64_t everything = ~OPTION_JSON_ALONE;

/* words: separated by blanks; a copy that stays alive as long as the options borrow from it. */
static char line[512];
static bool parse(struct options *options, uint64_t allowed, const char *words, struct error *error)
{
    char *list[WORDS_MAX];
    int count = 0;
    *error = (struct error){0};
    strcpy(line, words);
    for (char *word = strtok(line, " "); word && count < WORDS_MAX; word = strtok(NULL, " ")) list[count++] = word;
    return options_parse(options, "run", allowed, count, list, error);
}

static void refuse(const char *words, uint64_t allowed, const char *message, const char *hint)
{
    struct options options;
    struct error error;
    ck_assert_msg(!parse(&options, allowed, words, &error), "\"%s\" was accepted", words);
    ck_assert_int_eq(error.kind, ERROR_INPUT);
    ck_assert_msg(strstr(error.message, message) != NULL, "\"%s\": %s", words, error.message);
    ck_assert_msg(strstr(error.hint, hint) != NULL, "\"%s\": hint: %s", words, error.hint);
    options_done(&options);
}

/* Both forms of a value mean the same; arguments and options mix; repeatable ones add up in their order. */
START_TEST(accepts)
{
    struct options options;
    struct error error;
    ck_assert(parse(&options, everything,
                    "a.json --set train.steps=3 --set=model.dim=24 --threads 7 --seed=18446744073709551615", &error));
    ck_assert_int_eq(options.arguments_count, 1);
    ck_assert_str_eq(options.arguments[0], "a.json");
    ck_assert_int_eq(options.overrides_count, 2);
    ck_assert_str_eq(options.overrides[0].path, "train.steps");
    ck_assert_str_eq(options.overrides[1].path, "model.dim");
    ck_assert_str_eq(options.overrides[1].value, "24");
    ck_assert_int_eq(options.threads, 7);
    ck_assert(options.seed_given && options.seed == UINT64_MAX);
    options_done(&options);

    ck_assert(parse(&options, everything,
                    "--fault loss-divided-twice@step=0+2 x.json --fault=a:b --json - --color always -- --odd.json",
                    &error));
    ck_assert_int_eq(options.faults_count, 2);
    ck_assert_str_eq(options.faults[1], "a:b");
    ck_assert_str_eq(options.json, "-");
    ck_assert_int_eq(options.color, COLOR_ALWAYS);
    ck_assert_int_eq(options.arguments_count, 2);
    ck_assert_str_eq(options.arguments[1], "--odd.json");
    options_done(&options);
}
END_TEST

/* Of a list, --json alone is standard output; the value that stands there is still taken. */
START_TEST(json_alone)
{
    const struct { const char *words, *json; } lines[] = {
        {"--json", "-"}, {"--json --quiet", "-"}, {"name --json -- x", "-"}, {"--json -", "-"}, {"--json a.json", "a.json"}, {"--json=b.json", "b.json"},
    };
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        struct options options;
        struct error error;
        ck_assert_msg(parse(&options, everything | OPTION_JSON_ALONE, lines[i].words, &error), "%s: %s", lines[i].words, error.message);
        ck_assert_str_eq(options.json, lines[i].json);
        options_done(&options);
    }
    refuse("--csv", everything | OPTION_JSON_ALONE, "--csv needs a value", "FILE");
}
END_TEST

/* A list of checks may be left out from with a dash, and several --checks are one list. */
START_TEST(joins_checks)
{
    struct options options;
    struct error error;
    ck_assert(parse(&options, everything, "--checks deep --checks -poison", &error));
    ck_assert_str_eq(options.checks, "deep,-poison");
    options_done(&options);
}
END_TEST

/* A value of --set keeps every = but the first, and may be empty. */
START_TEST(splits_set_at_the_first_equals)
{
    struct options options;
    struct error error;
    ck_assert(parse(&options, everything, "--set faults.0.factor=a=b --set name=", &error));
    ck_assert_str_eq(options.overrides[0].path, "faults.0.factor");
    ck_assert_str_eq(options.overrides[0].value, "a=b");
    ck_assert_str_eq(options.overrides[1].value, "");
    options_done(&options);
}
END_TEST

/* Numbers are whole, in range, and nothing else: no sign, no blank, no exponent, no overflow. */
START_TEST(numbers_are_strict)
{
    static const char *const wrong[] = {"--seed -1",      "--seed +1",   "--seed=1.0",
                                        "--seed 1e3",     "--seed 0x10", "--threads 0",
                                        "--threads 1025", "--jobs x",    "--seed 18446744073709551616",
                                        "--interleave 7a"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        refuse(wrong[i], everything, "is not a whole number from", "");
    refuse("--seed=", everything, "needs a value", "");
}
END_TEST

/* Every refusal says what was found, and the nearest that would have been right. */
START_TEST(refuses)
{
    refuse("--thread 3", everything, "unknown option --thread", "--threads");
    refuse("--verbos", everything, "unknown option --verbos", "--verbose");
    refuse("--zzz", everything, "unknown option --zzz", "hpsim run --help");
    refuse("-q", everything, "unknown option -q", "two dashes");
    refuse("--json", everything, "--json needs a value", "FILE");
    refuse("--json --quiet", everything, "--json needs a value", "FILE");
    refuse("--quiet=yes", everything, "takes no value", "");
    refuse("--quiet --verbose", everything, "contradict", "");
    refuse("--set parallel.pp", everything, "PATH=VALUE", "--set parallel.pp=2");
    refuse("--set =2", everything, "PATH=VALUE", "");
    refuse("--gemm openbla", everything, "is not one of fixed|openblas", "openblas");
    refuse("--color blue", everything, "auto|always|never", "");
    refuse("--junit x.xml", OPTION_BIT(JSON), "hpsim run takes no --junit", "");
    refuse("--bisect", everything, "is not there yet", "");
    refuse("--html out.html", everything, "is not there yet", "");
}
END_TEST

/* What is near is found, what is far is not guessed at. */
START_TEST(nearest)
{
    static const char *const names[] = {"loss-divided-twice", "loss-not-divided", "validate", "run"};
    ck_assert_str_eq(spelling_nearest("loss-devided-twice", names, 4), "loss-divided-twice");
    ck_assert_str_eq(spelling_nearest("vaildate", names, 4), "validate");
    ck_assert_str_eq(spelling_nearest("rnu", names, 4), "run");
    ck_assert_str_eq(spelling_nearest("val", names, 4), "validate");
    ck_assert_ptr_null(spelling_nearest("quantum", names, 4));
    ck_assert_ptr_null(spelling_nearest("", names, 4));
}
END_TEST

/* The shortest text of a number reads back as the same bits. */
START_TEST(numbers_read_back)
{
    static const double values[] = {0,
                                    -0.0,
                                    0.1,
                                    1.0 / 3,
                                    5e-324,
                                    1.7976931348623157e308,
                                    2.2250738585072014e-308,
                                    123456789012345678.0,
                                    1e23,
                                    5.6100001335144043,
                                    -7e-9};
    char text[NUMBER_TEXT];
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        double back = strtod(number_shortest(values[i], text), NULL);
        ck_assert_msg(memcmp(&back, &values[i], sizeof back) == 0, "%s", text);
    }
    ck_assert_str_eq(number_shortest(0.1, text), "0.1");
    ck_assert_str_eq(number_shortest(5e-324, text), "5e-324");
    ck_assert_str_eq(number_count(434688, text), "434,688");
    ck_assert_str_eq(number_count(-1234567, text), "-1,234,567");
    ck_assert_str_eq(number_count(999, text), "999");
    ck_assert_str_eq(number_bytes(999, text), "999 B");
    ck_assert_str_eq(number_bytes(1738752, text), "1.7 MB");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("options");
    TCase *tcase = tcase_create("options");
    tcase_add_test(tcase, accepts);
    tcase_add_test(tcase, joins_checks);
    tcase_add_test(tcase, json_alone);
    tcase_add_test(tcase, splits_set_at_the_first_equals);
    tcase_add_test(tcase, numbers_are_strict);
    tcase_add_test(tcase, refuses);
    tcase_add_test(tcase, nearest);
    tcase_add_test(tcase, numbers_read_back);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_set_fork_status(runner, CK_NOFORK);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
