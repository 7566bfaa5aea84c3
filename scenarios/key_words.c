/* key_words: a key's line in keys.def as words: its default, and an example that a command line takes.
 *
 * An example is not the default where there is anything else: the next choice, twice the number, the flag turned. Where
 * that would contradict the rest of a scenario, the example stands in the table below, with what it needs beside it. */
#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "scenarios/key_use.h"
#include "scenarios/keys.h"
#include "scenarios/locale_c.h"
#include "scenarios/spelling.h"

static const struct { const char *path, *example; } examples[] = {
    {"name", "--set name=mine"},
    {"model.kv_heads", "--set model.kv_heads=2"},
    {"model.head_dim", "--set model.head_dim=32"},
    {"model.weights", "--set model.weights=weights.safetensors"},
    {"model.moe.experts", "--set model.moe.experts=12"},
    {"model.moe.groups_chosen", "--set model.moe.experts=12 --set model.moe.groups=3 --set model.moe.groups_chosen=2"},
    {"model.moe.capacity_factor", "--set model.moe.experts=12 --set model.moe.capacity_factor=1.25"},
    {"data.text", "--set data.text=corpus.txt"},
    {"train.frozen", "--set train.frozen=layers.0.*,tok_embeddings.weight"},
    {"train.loss_scale.kind", "--set train.loss_scale.kind=static"},
    {"train.grad_clip", "--set train.grad_clip=null"},
    {"train.optimizer.betas", "--set train.optimizer.betas=[0.9,0.99]"},
    {"train.optimizer.momentum", "--set train.optimizer.kind=sgd --set train.optimizer.momentum=0.9"},
    {"parallel", "--set parallel.pp=2 --set parallel.dp_shard=4"},
    {"parallel.tensor_parts", "--set parallel.tp=2 --set 'parallel.tensor_parts=[\"attention\"]'"},
    {"parallel.sequence_parallel", "--set parallel.tp=2 --set parallel.sequence_parallel=true"},
    {"parallel.ep", "--set model.moe.experts=12 --set parallel.dp_shard=2 --set parallel.ep=2"},
    {"parallel.etp", "--set model.moe.experts=12 --set parallel.tp=2 --set parallel.etp=2"},
    {"parallel.experts.over_tp", "--set model.moe.experts=12 --set parallel.tp=2 --set parallel.ep=2 --set parallel.experts.over_tp=true"},
    {"parallel.experts.dispatcher", "--set model.moe.experts=12 --set parallel.dp_shard=2 --set parallel.ep=2 --set parallel.experts.dispatcher=replicated"},
    {"parallel.experts.inner_group", "--set model.moe.experts=12 --set parallel.dp_shard=4 --set parallel.ep=4 --set parallel.experts.inner_group=2"},
    {"train.sequence_chunks", "--set train.sequence_chunks=4"},
    {"train.gc_interval_steps", "--set train.gc_interval_steps=200"},
    {"parallel.pipeline.micro_batch_size", "--set parallel.pp=2 --set parallel.pipeline.micro_batch_size=2"},
    {"parallel.pipeline.layers_per_stage", "--set parallel.pp=2 --set parallel.pipeline.layers_per_stage=[5,3]"},
    {"parallel.fsdp.zero", "--set parallel.dp_shard=2 --set parallel.fsdp.zero=1"},
    {"parallel.fsdp.reshard_after_forward", "--set parallel.dp_shard=2 --set parallel.fsdp.reshard_after_forward=false"},
    {"parallel.fsdp.bucket_elements", "--set parallel.dp_replicate=2 --set parallel.fsdp.bucket_elements=1000"},
    {"parallel.fsdp.bucket_alignment", "--set parallel.dp_replicate=2 --set parallel.fsdp.bucket_alignment=16"},
    {"parallel.fsdp.prefetch", "--set parallel.dp_shard=2 --set parallel.fsdp.prefetch=1"},
    {"model.dropout", "--set model.dropout=0.1"},
    {"recompute_parts", "--set model.arch=pangu_moe --set 'recompute_parts=[\"moe_permute\",\"mla_qkv\"]'"},
    {"precision", "--set precision=fp64"},
    {"faults", "--fault loss-divided-twice"},
    {"faults[].fault", "--fault pp.loss.scale:times"},
    {"faults[].site", "--set faults.0.site=pp.loss.scale --set faults.0.do=omit"},
    {"faults[].do", "--set faults.0.site=pp.loss.scale --set faults.0.do=omit"},
    {"faults[].at", "--fault loss-divided-twice@step=1,rank=0"},
    {"faults[].at.param", "--fault layer.weight_gradient:perturb@param=layers.1.*"},
    {"faults[].in", "--fault loss-divided-twice@in=both"},
    {"faults[].once", "--fault loss-divided-twice@once"},
    {"faults[].factor", "--fault loss-divided-twice@factor=1/(M*D)"},
    {"faults[].value", "--fault pp.loss.scale:set@value=0.5"},
    {"faults[].group", "--fault clip.norm_reduce:wrong-group@group=pp"},
    {"faults[].op", "--fault clip.norm_reduce:wrong-op@op=max"},
    {"faults[].format", "--fault fsdp.reduce_grad:wrong-format@format=bf16"},
    {"faults[].index", "--fault fsdp.unshard:corrupt@index=7"},
    {"expect.component", "--set expect.verdict=diverged --set expect.component=pp.loss"},
    {"expect.site", "--set expect.verdict=diverged --set expect.site=pp.loss.scale"},
    {"expect.verdict", "--set expect.verdict=diverged"},
    {"expect.ranks", "--set expect.verdict=diverged --set expect.ranks=[6,7]"},
    {"expect.checks", "--set expect.verdict=diverged --set 'expect.checks=[\"token-weight\"]'"},
};

const char *key_default(const struct key *key, char text[KEY_WORDS])
{
    bool computed = *key->fallback == '=';
    snprintf(text, KEY_WORDS, "%s", computed ? key->fallback + 1 : key->fallback);
    return text;
}

const char *key_there(const struct key *key, char text[KEY_WORDS])
{
    char name[CHOICE_TEXT];
    struct phrase phrase = {text, KEY_WORDS, 0};
    text[0] = 0;
    if (!key->there) return text;
    phrase_add(&phrase, "so far only ");
    for (int i = 0; choice_at(key->there, i, name); i++) phrase_add(&phrase, "%s%s", i ? ", " : "", name);
    if (!*key->there) phrase_add(&phrase, "%s", *key->fallback == '=' ? "leaving it out" : "the default");
    return text;
}

/* Another of the choices that is there; the default where it is the only one. */
static void other_choice(const struct key *key, const char *other_than, char name[CHOICE_TEXT])
{
    const char *list = key->there ? key->there : key->options;
    char candidate[CHOICE_TEXT];
    snprintf(name, CHOICE_TEXT, "%s", other_than);
    for (int i = 0; choice_at(list, i, candidate); i++) {
        if (strcmp(candidate, other_than) != 0) {
            memcpy(name, candidate, CHOICE_TEXT);
            return;
        }
    }
}

static double other_number(const struct key *key, double fallback)
{
    double value = fallback == 0 ? 1 : 2 * fallback;
    if (value > key->high) value = fallback / 2;
    return value < key->low ? key->low : value;
}

static void example_value(const struct key *key, char text[KEY_WORDS])
{
    char choice[CHOICE_TEXT];
    cJSON *fallback = *key->fallback == '=' ? NULL : cJSON_Parse(key->fallback);
    const char *word = cJSON_IsString(fallback) ? fallback->valuestring : "";
    double number = cJSON_IsNumber(fallback) ? fallback->valuedouble : key->low > 1 ? key->low : 1;
    bool only_default = key->there && !*key->there;
    switch (key->type) {
    case KEY_CHOICE:
        if (only_default) snprintf(choice, sizeof choice, "%s", word);
        else other_choice(key, word, choice);
        snprintf(text, KEY_WORDS, "%s", choice);
        break;
    case KEY_FLAG: snprintf(text, KEY_WORDS, "%s", (cJSON_IsTrue(fallback) != 0) == only_default ? "true" : "false"); break;
    case KEY_INTEGER: case KEY_REAL: case KEY_ONE_OR_MORE:
        if (only_default) snprintf(text, KEY_WORDS, "%s", key->fallback);
        else snprintf(text, KEY_WORDS, "%.15g", other_number(key, number));
        break;
    default: snprintf(text, KEY_WORDS, "%s", *key->fallback == '=' ? "" : word[0] ? word : key->fallback); break;
    }
    cJSON_Delete(fallback);
}

const char *key_example(const struct key *key, char text[KEY_WORDS])
{
    char value[KEY_WORDS];
    struct phrase phrase = {text, KEY_WORDS, 0};
    text[0] = 0;
    for (size_t i = 0; i < sizeof examples / sizeof examples[0]; i++) {
        if (!strcmp(examples[i].path, key->path)) snprintf(text, KEY_WORDS, "%s", examples[i].example);
    }
    if (text[0] || key->type == KEY_SECTION || key->type == KEY_SECTIONS) return text;
    struct locale_c locale = locale_c_enter();
    example_value(key, value);
    locale_c_leave(locale);
    bool of_fault = !strncmp(key->path, "faults[].at.", 12), left_out = of_fault && key->there && !*key->there;
    if (of_fault && !left_out) phrase_add(&phrase, "--fault loss-divided-twice@%s=1+2", key->path + 12);
    char needs[96];
    if (!of_fault && !left_out) phrase_add(&phrase, "%s--set %s=%s", key_needs(key, needs, sizeof needs), key->path, value);
    return text;
}

/* ---- finding a key by what somebody typed ---- */

/* "faults.0.at", "faults[2].at" and "faults.at" are all "faults[].at". */
static void normal_path(const char *typed, char path[KEY_WORDS])
{
    size_t used = 0;
    while (*typed && used + 1 < KEY_WORDS) {
        size_t length = strcspn(typed, ".[]");
        bool is_index = length > 0 && strspn(typed, "0123456789") == length;
        if (length > 0 && !is_index && used + length + 1 < KEY_WORDS) {
            if (used) path[used++] = '.';
            memcpy(path + used, typed, length);
            used += length;
        }
        typed += length + (typed[length] != 0);
    }
    path[used] = 0;
}

const struct key *key_look_up(const char *typed)
{
    char wanted[KEY_WORDS], path[KEY_WORDS];
    normal_path(typed, wanted);
    for (int i = 0; i < key_count(); i++) {
        normal_path(key_at(i)->path, path);
        if (wanted[0] && !strcmp(path, wanted)) return key_at(i);
    }
    return NULL;
}

bool key_is_within(const struct key *key, const struct key *section)
{
    size_t length = strlen(section->path);
    bool begins = !strncmp(key->path, section->path, length) && (key->path[length] == '.' || key->path[length] == '[');
    return begins && key != section;
}

void key_hint(const char *typed, char *text, size_t size)
{
    const char *names[512], *last = strrchr(typed, '.');
    struct phrase phrase = {text, size, 0};
    int count = 0;
    text[0] = 0;
    last = last ? last + 1 : typed;
    for (int i = 0; i < key_count() && count < 512; i++) {
        const char *path = key_at(i)->path, *end = strrchr(path, '.');
        names[count++] = path;
        if (!strcmp(end ? end + 1 : path, last)) phrase_add(&phrase, "%s%s", phrase.used ? " or " : "did you mean ", path);
    }
    if (phrase.used == 0) {
        const char *near = spelling_nearest(typed, names, count);
        for (int i = 0; i < count && !near; i++) { /* a part of a path, misspelt */
            const char *end = strrchr(names[i], '.');
            const char *one = end ? end + 1 : names[i];
            if (spelling_nearest(last, &one, 1)) near = names[i];
        }
        if (near) phrase_add(&phrase, "did you mean %s", near);
    }
    phrase_add(&phrase, "%shpsim schema --markdown lists all keys", phrase.used ? "? " : "");
}
