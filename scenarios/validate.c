/* validate: each refusal shows its arithmetic and what is allowed. Products are taken in 64 bits. */
#include "scenarios/validate.h"

#include <stdio.h>
#include <string.h>

#include "model/attention_run.h"
#include "model/context/context.h"
#include "model/data.h"
#include "model/plugin/plugin.h"
#include "model/precision.h"
#include "model/record.h"
#include "model/train.h"
#include "scenarios/estimate.h"
#include "scenarios/spelling.h"

enum { RANKS_MAX = 4096, LIST_TEXT = 200 };
static const double bytes_max = 16e9;

#define BLAME(...) ((const char *const[]){__VA_ARGS__, NULL})

/* "1, 2, 4, 8": the divisors up to most; the first ones and the last where there are many. */
static const char *divisors(int number, int most, char text[LIST_TEXT])
{
    struct phrase phrase = {text, LIST_TEXT, 0};
    int last = 0, shown = 0, count = 0;
    for (int i = 1; i <= number && i <= most; i++) {
        if (number % i != 0) continue;
        count++;
        last = i;
        if (count <= 16) {
            phrase_add(&phrase, "%s%d", shown ? ", " : "", i);
            shown = i;
        }
    }
    if (last > shown) phrase_add(&phrase, ", ..., %d", last);
    return text;
}

/* "24, 48": the multiples of unit around number. */
static const char *multiples(int64_t number, int64_t unit, char text[LIST_TEXT])
{
    int64_t below = number / unit * unit;
    if (below > 0) snprintf(text, LIST_TEXT, "%lld, %lld", (long long)below, (long long)(below + unit));
    else snprintf(text, LIST_TEXT, "%lld", (long long)unit);
    return text;
}

/* ---- the model ---- */

enum { ARCH_GPT, ARCH_PANGU_MOE };

/* What an architecture is made of where the file does not say otherwise. */
static bool set_architecture(struct reader *reader, struct draft *draft)
{
    struct model_config *m = &draft->scenario.config.model;
    bool pangu = draft->arch == ARCH_PANGU_MOE;
    if (!reader_has(reader, "model.attention")) m->attention = pangu ? ATTENTION_MLA : ATTENTION_MHA;
    if (!reader_has(reader, "model.rope")) m->rope = !pangu;
    if (!reader_has(reader, "model.bias")) m->bias = pangu;
    if (!reader_has(reader, "model.initial")) m->initial = pangu || draft->scenario.config.workload == WORKLOAD_DENOISE ? INITIAL_PYTORCH : INITIAL_GPT2;
    if (!reader_has(reader, "model.moe.experts")) m->moe.experts = pangu ? 16 : 0;
    for (int i = 0; i < draft->dense_layers_count; i++) {
        int layer = draft->dense_layers[i];
        m->moe.dense[layer / 8] |= (uint8_t)(1 << layer % 8);
    }
    return true;
}

/* Attention's width of a head may stand in either place, or in both alike. */
static bool check_latent(struct reader *reader, const struct draft *draft, struct model_config *m)
{
    if (m->attention != ATTENTION_MLA) return true;
    if (m->qk_norm) {
        return reader_fail_among(reader, BLAME("model.qk_norm", "model.attention"), "qk_norm is not built for latent attention; allowed: attention mha, or qk_norm false");
    }
    if (reader_has(reader, "model.kv_heads") && m->kv_heads != m->heads) {
        return reader_fail_among(reader, BLAME("model.kv_heads", "model.attention"),
                                 "kv_heads %d with latent attention, where every head has its own keys and values; allowed: %d, or leaving it out",
                                 m->kv_heads, m->heads);
    }
    if (!draft->mla_head_dim) return true;
    if (reader_has(reader, "model.head_dim") && m->head_dim != draft->mla_head_dim) {
        return reader_fail_among(reader, BLAME("model.mla.head_dim", "model.head_dim"),
                                 "model.mla.head_dim %d and model.head_dim %d contradict each other; allowed: one of them",
                                 draft->mla_head_dim, m->head_dim);
    }
    return true;
}

static bool check_groups(struct reader *reader, struct moe_config *moe)
{
    char list[LIST_TEXT];
    if (!reader_has(reader, "model.moe.groups_chosen")) moe->groups_chosen = moe->groups;
    if (moe->experts % moe->groups != 0) {
        return reader_fail_among(reader, BLAME("model.moe.groups", "model.moe.experts"), "experts %d do not split into groups %d: %d / %d = %.2f; allowed: %s",
                                 moe->experts, moe->groups, moe->experts, moe->groups, (double)moe->experts / moe->groups, divisors(moe->experts, moe->experts, list));
    }
    if (moe->groups_chosen > moe->groups) {
        return reader_fail_among(reader, BLAME("model.moe.groups_chosen", "model.moe.groups"), "groups_chosen %d of %d groups; allowed: 1 to %d",
                                 moe->groups_chosen, moe->groups, moe->groups);
    }
    int room = moe->experts / moe->groups * moe->groups_chosen, size = moe->experts / moe->groups;
    int of_each = moe->top_k / moe->groups_chosen;
    if (moe->top_k > room || of_each > size) {
        return reader_fail_among(reader, BLAME("model.moe.groups_chosen", "model.moe.top_k", "model.moe.groups"),
                                 "top_k %d of %d experts in %d groups of %d; allowed: a top_k up to %d, or more groups_chosen", moe->top_k, room,
                                 moe->groups_chosen, size, room);
    }
    return true;
}

static bool check_experts(struct reader *reader, const struct draft *draft, struct moe_config *moe)
{
    moe->scores_bf16 = draft->score_format == 1;
    if (moe->experts == 0) return true;
    if (moe->top_k > moe->experts) {
        return reader_fail_among(reader, BLAME("model.moe.top_k", "model.moe.experts"),
                                 "top_k %d of %d experts; allowed: 1 to %d", moe->top_k, moe->experts, moe->experts);
    }
    return check_groups(reader, moe);
}

static bool check_heads(struct reader *reader, const struct draft *draft, struct model_config *m)
{
    char list[LIST_TEXT];
    if (!reader_has(reader, "model.kv_heads")) m->kv_heads = m->heads;
    if (m->heads % m->kv_heads != 0) {
        return reader_fail_among(reader, BLAME("model.kv_heads", "model.heads"),
                                 "heads %d do not split into kv_heads %d: %d / %d = %.2f; allowed kv_heads: %s",
                                 m->heads, m->kv_heads, m->heads, m->kv_heads, (double)m->heads / m->kv_heads,
                                 divisors(m->heads, m->heads, list));
    }
    bool latent_width = m->attention == ATTENTION_MLA && draft->mla_head_dim > 0;
    if (latent_width) m->head_dim = draft->mla_head_dim;
    else if (!reader_has(reader, "model.head_dim")) {
        if (m->dim % m->heads != 0) {
            reader_fail_among(reader, BLAME("model.heads", "model.dim"),
                              "dim %d does not split into heads %d: %d / %d = %.2f; nearest dim: %s", m->dim, m->heads,
                              m->dim, m->heads, (double)m->dim / m->heads, multiples(m->dim, m->heads, list));
            error_hint(reader->error, "model.head_dim sets the width of a head apart from dim");
            return false;
        }
        m->head_dim = m->dim / m->heads;
    }
    if (m->rope && m->head_dim % 2 != 0) {
        return reader_fail_among(
            reader, BLAME("model.head_dim", "model.heads", "model.dim", "model.rope"),
            "head_dim %d is odd, and rope turns pairs; allowed: an even head_dim such as %d, or rope false",
            m->head_dim, m->head_dim + 1);
    }
    return true;
}

/* ---- the layout ---- */

static bool check_ranks(struct reader *reader, const struct layout *l)
{
    int64_t ranks = (int64_t)l->pp * l->dp_replicate * l->dp_shard * l->tp * l->cp;
    char cp[32] = "";
    if (ranks <= RANKS_MAX) return true;
    if (l->cp > 1) snprintf(cp, sizeof cp, " x cp %d", l->cp);
    return reader_fail_among(reader, BLAME("parallel.dp_shard", "parallel.dp_replicate", "parallel.cp", "parallel.pp"),
                             "pp %d x dp_replicate %d x dp_shard %d%s x tp %d = %lld ranks; at most %d are allowed", l->pp,
                             l->dp_replicate, l->dp_shard, cp, l->tp, (long long)ranks, RANKS_MAX);
}

/* Tensor parallelism splits heads, hidden widths and the vocabulary, none of them unevenly. */
static const struct { const char *name; enum tensor_part part; } tensor_parts[] = {
    {"attention", TENSOR_ATTENTION}, {"feed_forward", TENSOR_FEED_FORWARD}, {"vocabulary", TENSOR_VOCABULARY},
};

static bool read_tensor_parts(struct reader *reader, struct layout *l)
{
    const cJSON *list = reader_item(reader, "parallel.tensor_parts");
    const char *names[] = {tensor_parts[0].name, tensor_parts[1].name, tensor_parts[2].name};
    unsigned split = 0;
    int at = 0;
    for (const cJSON *item = list ? list->child : NULL; item; item = item->next, at++) {
        int found = 0;
        while (found < 3 && strcmp(names[found], item->valuestring) != 0) found++;
        if (found < 3) {
            split |= tensor_parts[found].part;
            continue;
        }
        char path[48], shown[FOREIGN_TEXT];
        snprintf(path, sizeof path, "parallel.tensor_parts[%d]", at);
        const char *near = spelling_nearest(item->valuestring, names, 3);
        if (near) return reader_fail(reader, path, "unknown part '%s'; did you mean '%s'?", foreign(item->valuestring, shown), near);
        return reader_fail(reader, path, "unknown part '%s'; allowed: attention, feed_forward, vocabulary", foreign(item->valuestring, shown));
    }
    l->tensor_whole = split ? TENSOR_PARTS & ~split : 0;
    return !l->tensor_whole || !layout_slices_sequences(l) ||
           reader_fail_among(reader, BLAME("parallel.tensor_parts", "parallel.sequence_parallel"),
                             "sequence parallelism gathers and scatters at every part that tensor parallelism splits, and some are left whole; allowed: sequence_parallel false, or all three parts");
}

static bool check_tensor_parallel(struct reader *reader, const struct model_config *m, const struct layout *l)
{
    int tp = l->tp;
    const struct { const char *path, *name; int number; enum tensor_part part; } split[] = {
        {"model.heads", "heads", m->heads, TENSOR_ATTENTION}, {"model.kv_heads", "kv_heads", m->kv_heads, TENSOR_ATTENTION},
        {"model.ffn", "ffn", m->ffn, TENSOR_FEED_FORWARD}, {"model.vocab", "vocab", m->vocab, TENSOR_VOCABULARY},
        {"model.moe.shared_ffn", "shared_ffn", m->moe.experts > 0 ? m->moe.shared_ffn : 0, TENSOR_FEED_FORWARD},
    };
    char list[LIST_TEXT];
    for (size_t i = 0; i < sizeof split / sizeof split[0]; i++) {
        if (split[i].number % tp == 0 || l->tensor_whole & split[i].part) continue;
        return reader_fail_among(reader, BLAME("parallel.tp", split[i].path), "%s %d do not split into tp %d: %d / %d = %.2f; nearest %s: %s",
                                 split[i].name, split[i].number, tp, split[i].number, tp, (double)split[i].number / tp, split[i].name,
                                 multiples(split[i].number, tp, list));
    }
    return true;
}

/* Sequence parallelism splits each sequence between the tensor-parallel ranks. */
static bool check_sequence_parallel(struct reader *reader, const struct model_config *m, const struct layout *l)
{
    char list[LIST_TEXT];
    if (!layout_slices_sequences(l)) return true;
    if (l->cp == 1 && m->seq % l->tp != 0) {
        return reader_fail_among(reader, BLAME("model.seq", "parallel.sequence_parallel", "parallel.tp"),
                                 "sequences of %d tokens do not split into slices for tp %d: %d / %d = %.2f; nearest seq: %s, or sequence_parallel false", m->seq,
                                 l->tp, m->seq, l->tp, (double)m->seq / l->tp, multiples(m->seq, l->tp, list));
    }
    if (layout_ep(l) > 1 && l->dispatcher == DISPATCH_REPLICATED) {
        return reader_fail_among(reader, BLAME("parallel.experts.dispatcher", "parallel.sequence_parallel"),
                                 "dispatcher replicated is not built with sequence_parallel; allowed: all_to_all or all_gather, or sequence_parallel false");
    }
    return layout_ep(l) == 1 || !l->experts_over_tp || l->ep % l->tp == 0 ||
           reader_fail_among(reader, BLAME("parallel.ep", "parallel.experts.over_tp", "parallel.sequence_parallel"),
                             "ep %d over tp %d gives tp ranks with different tokens the same experts: %d / %d = %.2f; allowed with sequence_parallel: a multiple of tp, or over_tp false",
                             l->ep, l->tp, l->ep, l->tp, (double)l->ep / l->tp);
}

/* ---- context parallelism ---- */

/* usp: heads are split over as many ranks as divide both cp and the keys' heads of a rank. */
static int default_ulysses(int cp, int kv_heads)
{
    for (int u = cp; u > 1; u--) {
        if (cp % u == 0 && kv_heads % u == 0) return u;
    }
    return 1;
}

/* Each cp rank's rows of a sequence split again: into slices over tp, into chunks of the head. */
static bool check_context_rows(struct reader *reader, const struct run_config *config, int parts, const char *path, const char *name)
{
    const struct layout *l = &config->layout;
    const struct context_layout *layout = context_layout_find(l->context.layout);
    int seq = config->model.seq;
    for (int c = 0; parts > 1 && c < l->cp; c++) {
        int64_t rows = context_layout_rows(layout, seq, l->cp, c);
        char list[LIST_TEXT];
        if (rows % parts == 0) continue;
        return reader_fail_among(reader, BLAME("model.seq", path, "parallel.cp"),
                                 "cp rank %d of %d has %lld of %d positions, which do not split into %s %d: %lld / %d = %.2f; nearest seq: %s", c, l->cp, (long long)rows, seq,
                                 name, parts, (long long)rows, parts, (double)rows / parts, multiples(seq, (int64_t)l->cp * parts, list));
    }
    return true;
}

static bool check_context(struct reader *reader, struct draft *draft)
{
    struct run_config *config = &draft->scenario.config;
    const struct model_config *m = &config->model;
    struct layout *l = &config->layout;
    int tp = l->tensor_whole & TENSOR_ATTENTION ? 1 : l->tp, heads = m->heads / tp, kv_heads = (m->attention == ATTENTION_MLA ? m->heads : m->kv_heads) / tp;
    char why[320], list[LIST_TEXT];
    if (!reader_has(reader, "parallel.context.ulysses")) l->context.ulysses = default_ulysses(l->cp, kv_heads);
    if (l->cp == 1) return true;
    if (m->seq < l->cp)
        return reader_fail_among(reader, BLAME("parallel.cp", "model.seq"), "cp %d of sequences of %d positions leaves ranks without any: %d / %d = %.2f; allowed cp: 1 to %d", l->cp, m->seq,
                                 m->seq, l->cp, (double)m->seq / l->cp, m->seq);
    bool is_usp = !strcmp(l->context.method, "usp");
    if (is_usp && l->cp % l->context.ulysses != 0)
        return reader_fail_among(reader, BLAME("parallel.context.ulysses", "parallel.cp"), "cp %d does not split into groups of ulysses %d: %d / %d = %.2f; allowed ulysses: %s", l->cp,
                                 l->context.ulysses, l->cp, l->context.ulysses, (double)l->cp / l->context.ulysses, divisors(l->cp, l->cp, list));
    struct context_shape shape = {.batch = 1, .seq = m->seq, .size = l->cp, .ulysses = is_usp ? l->context.ulysses : 1, .heads = heads, .kv_heads = kv_heads,
                                  .head_dim = m->head_dim, .causal = m->causal, .reversed = l->context.reversed, .overlap = l->context.overlap};
    const struct context_method *method = context_method_of(config);
    if (!method->allows(&shape, why)) return reader_fail_among(reader, BLAME("parallel.context.method", "parallel.context.ulysses", "parallel.cp", "model.kv_heads", "model.heads"), "%s", why);
    if (l->dispatcher == DISPATCH_REPLICATED && layout_ep(l) > 1)
        return reader_fail_among(reader, BLAME("parallel.experts.dispatcher", "parallel.cp"),
                                 "dispatcher replicated needs ranks of an expert-parallel group with the same tokens, and cp %d gives each some of its own; allowed: all_to_all or all_gather, or cp 1", l->cp);
    return (!layout_slices_sequences(l) || check_context_rows(reader, config, l->tp, "parallel.tp", "slices for tp")) &&
           check_context_rows(reader, config, config->train.sequence_chunks, "train.sequence_chunks", "sequence_chunks");
}

static bool tp_allows_ep(const struct layout *l, int ep)
{
    if (ep == 1 || !l->experts_over_tp || ep % l->tp == 0) return true;
    return l->tp % ep == 0 && !layout_slices_sequences(l);
}

/* "1, 2, 4": the ep that divide both the ranks that a group is of and the experts, and go with tp. */
static const char *allowed_ep(const struct model_config *m, const struct layout *l, int ranks, char text[LIST_TEXT])
{
    struct phrase phrase = {text, LIST_TEXT, 0};
    for (int ep = 1, shown = 0; ep <= ranks && ep <= m->moe.experts && shown < 16; ep++) {
        if (ranks % ep == 0 && m->moe.experts % ep == 0 && tp_allows_ep(l, ep)) phrase_add(&phrase, "%s%d", shown++ ? ", " : "", ep);
    }
    return text;
}

static bool check_expert_layout(struct reader *reader, const struct model_config *m, const struct layout *l)
{
    char list[LIST_TEXT];
    int axis = layout_shards(l) * (l->experts_over_tp ? l->tp : 1);
    const char *shards = l->cp > 1 ? "dp_shard x cp" : "dp_shard";
    if (m->moe.experts == 0) {
        return reader_fail_among(reader, BLAME("parallel.ep", "model.moe.experts"), "ep %d, and the model has no experts; allowed: 1, or a model.moe.experts that splits into %d", l->ep, l->ep);
    }
    if (axis % l->ep != 0) {
        if (l->experts_over_tp)
            return reader_fail_among(reader, BLAME("parallel.ep", "parallel.dp_shard", "parallel.tp"), "%s %d x tp %d = %d ranks do not split into groups of ep %d: %d / %d = %.2f; allowed ep: %s", shards,
                                     layout_shards(l), l->tp, axis, l->ep, axis, l->ep, (double)axis / l->ep, allowed_ep(m, l, axis, list));
        reader_fail_among(reader, BLAME("parallel.ep", "parallel.dp_shard", "parallel.cp"), "%s %d does not split into groups of ep %d: %d / %d = %.2f; allowed ep: %s", shards, axis, l->ep,
                          axis, l->ep, (double)axis / l->ep, allowed_ep(m, l, axis, list));
        if (l->tp > 1) error_hint(reader->error, "with parallel.experts.over_tp the groups span %s x tp = %d ranks", shards, axis * l->tp);
        return false;
    }
    if (l->experts_over_tp && l->ep % l->tp != 0 && l->tp % l->ep != 0) {
        return reader_fail_among(reader, BLAME("parallel.ep", "parallel.tp", "parallel.experts.over_tp"),
                                 "groups of ep %d over tp %d would hold some tokens' ranks in part: %d / %d = %.2f; an ep divides tp or is a multiple of it; allowed ep: %s",
                                 l->ep, l->tp, l->ep, l->tp, (double)l->ep / l->tp, allowed_ep(m, l, axis, list));
    }
    if (m->moe.experts % l->ep != 0) {
        return reader_fail_among(reader, BLAME("parallel.ep", "model.moe.experts"), "experts %d do not split into ep %d: %d / %d = %.2f; allowed ep: %s", m->moe.experts, l->ep,
                                 m->moe.experts, l->ep, (double)m->moe.experts / l->ep, allowed_ep(m, l, axis, list));
    }
    return true;
}

/* How an expert's matrices are split, and how tokens come to them. */
static bool check_expert_parts(struct reader *reader, const struct model_config *m, const struct layout *l)
{
    char list[LIST_TEXT];
    if (l->etp != 1 && l->etp != l->tp) {
        if (l->tp == 1) return reader_fail_among(reader, BLAME("parallel.etp", "parallel.tp"), "etp %d with tp 1; allowed: 1, or tp %d beside it", l->etp, l->etp);
        return reader_fail_among(reader, BLAME("parallel.etp", "parallel.tp"), "etp %d with tp %d; allowed: 1, or %d, which is tp", l->etp, l->tp, l->tp);
    }
    if (l->etp > 1 && m->moe.experts == 0) return reader_fail_among(reader, BLAME("parallel.etp", "model.moe.experts"), "etp %d, and the model has no experts; allowed: 1", l->etp);
    if (l->etp > 1 && l->experts_over_tp) {
        return reader_fail_among(reader, BLAME("parallel.etp", "parallel.experts.over_tp"),
                                 "etp %d splits each expert over the tp ranks, and over_tp gives each of them experts of its own; allowed: one of the two", l->etp);
    }
    if (l->etp > 1 && m->moe.expert_ffn % l->etp != 0) {
        return reader_fail_among(reader, BLAME("parallel.etp", "model.moe.expert_ffn"), "expert_ffn %d does not split into etp %d: %d / %d = %.2f; nearest expert_ffn: %s",
                                 m->moe.expert_ffn, l->etp, m->moe.expert_ffn, l->etp, (double)m->moe.expert_ffn / l->etp, multiples(m->moe.expert_ffn, l->etp, list));
    }
    if (l->experts_over_tp && l->dispatcher == DISPATCH_REPLICATED) {
        return reader_fail_among(reader, BLAME("parallel.experts.dispatcher", "parallel.experts.over_tp"),
                                 "dispatcher replicated with over_tp: ranks of one tp group hold the same tokens already; allowed: all_to_all or all_gather, or over_tp false");
    }
    if (l->ep_inner > 1 && (l->dispatcher != DISPATCH_ALL_TO_ALL || l->ep % l->ep_inner != 0)) {
        if (l->dispatcher != DISPATCH_ALL_TO_ALL)
            return reader_fail_among(reader, BLAME("parallel.experts.inner_group", "parallel.experts.dispatcher"),
                                     "inner_group %d is a step of an all-to-all, and the dispatcher is another; allowed: 1, or dispatcher all_to_all", l->ep_inner);
        return reader_fail_among(reader, BLAME("parallel.experts.inner_group", "parallel.ep"), "ep %d does not split into inner groups of %d: %d / %d = %.2f; allowed inner_group: %s",
                                 l->ep, l->ep_inner, l->ep, l->ep_inner, (double)l->ep / l->ep_inner, divisors(l->ep, l->ep, list));
    }
    return true;
}

static bool check_expert_parallel(struct reader *reader, const struct model_config *m, const struct layout *l)
{
    return (l->ep == 1 || check_expert_layout(reader, m, l)) && check_expert_parts(reader, m, l);
}

static bool check_layers(struct reader *reader, int layers, struct layout *l)
{
    const cJSON *list = reader_item(reader, "parallel.pipeline.layers_per_stage");
    char allowed[LIST_TEXT];
    int64_t sum = 0;
    if (!list) {
        for (int i = 0; i < l->pp; i++) l->layers_per_stage[i] = layers / l->pp;
        if (layers % l->pp == 0) return true;
        reader_fail_among(reader, BLAME("parallel.pp", "model.layers"),
                          "layers %d do not split into pp %d x chunks 1; allowed pp: %s", layers, l->pp,
                          divisors(layers, STAGES_MAX, allowed));
        error_hint(reader->error, "parallel.pipeline.layers_per_stage gives each stage its own number");
        return false;
    }
    int count = cJSON_GetArraySize(list);
    if (count != l->pp) {
        return reader_fail_among(reader, BLAME("parallel.pipeline.layers_per_stage", "parallel.pp"),
                                 "layers_per_stage has %d numbers for pp %d; allowed: %d", count, l->pp, l->pp);
    }
    for (int i = 0; i < count; i++) sum += l->layers_per_stage[i];
    return sum == layers ||
           reader_fail_among(reader, BLAME("parallel.pipeline.layers_per_stage", "model.layers"),
                             "layers_per_stage sums to %lld; allowed: %d, which is layers", (long long)sum, layers);
}

static bool check_sharding(struct reader *reader, struct layout *l)
{
    bool sharded = l->dp_replicate == 1 || layout_shards(l) > 1;
    if (!reader_has(reader, "parallel.fsdp.zero")) l->zero = sharded ? ZERO_3 : ZERO_0;
    if (!reader_has(reader, "parallel.fsdp.reshard_after_forward")) l->reshard_after_forward = l->zero == ZERO_3;
    if (l->reshard_after_forward && l->zero != ZERO_3) {
        return reader_fail_among(reader, BLAME("parallel.fsdp.reshard_after_forward", "parallel.fsdp.zero"),
                                 "reshard_after_forward true needs zero 3, and zero is %d; allowed: false, or zero 3",
                                 l->zero);
    }
    if (l->prefetch > 0 && l->zero != ZERO_3) {
        return reader_fail_among(reader, BLAME("parallel.fsdp.prefetch", "parallel.fsdp.zero"),
                                 "prefetch %d needs zero 3, and zero is %d; allowed: 0, or zero 3", l->prefetch, l->zero);
    }
    if (l->bucket_elements > 0 && l->zero == ZERO_3) {
        return reader_fail_among(reader, BLAME("parallel.fsdp.bucket_elements", "parallel.fsdp.zero"),
                                 "bucket_elements %d needs zero 0, 1 or 2: with zero 3 each unit is reduced by itself; "
                                 "allowed: 0, or another zero", l->bucket_elements);
    }
    if (l->bucket_elements > 0 && (l->bucket_elements < 16 || l->bucket_elements < l->bucket_alignment)) {
        int least = l->bucket_alignment > 16 ? l->bucket_alignment : 16;
        return reader_fail_among(reader, BLAME("parallel.fsdp.bucket_elements", "parallel.fsdp.bucket_alignment"),
                                 "bucket_elements %d is less than %d%s: such a bucket is all padding and overhead; allowed: 0 (a bucket "
                                 "a unit), or %d and more", l->bucket_elements, least, least > 16 ? ", which is bucket_alignment" : "", least);
    }
    return true;
}

/* The default: enough micro-batches to fill the pipeline twice, as far as the sequences allow it. */
static int default_microbatches(int sequences, int pp)
{
    if (pp == 1) return 1;
    for (int m = 2 * pp; m > 1; m--) {
        if (sequences % m == 0) return m;
    }
    return 1;
}

/* The number of micro-batches from their size; one of both is enough. */
static bool take_size(struct reader *reader, int batch, int size, struct layout *l)
{
    static const char *const blame[] = {"parallel.pipeline.micro_batch_size", "train.global_batch", "parallel.dp_shard", "parallel.dp_replicate", NULL};
    int data_ranks = layout_sequence_ranks(l);
    int64_t parts = (int64_t)data_ranks * size;
    char list[LIST_TEXT];
    if (!reader_has(reader, blame[0])) return true;
    if (reader_has(reader, "parallel.pipeline.microbatches"))
        return reader_fail(reader, blame[0], "both micro_batch_size and microbatches are given; one makes the other: global_batch / (data ranks x micro_batch_size)");
    if (batch % parts != 0) {
        return reader_fail_among(reader, blame, "global_batch %d does not split into %d data ranks' micro-batches of %d sequences: %d / %lld = %.2f; nearest: %s",
                                 batch, data_ranks, size, batch, (long long)parts, (double)batch / (double)parts, multiples(batch, parts, list));
    }
    l->microbatches = (int)(batch / parts);
    return true;
}

static bool check_batch(struct reader *reader, int batch, int size, struct layout *l)
{
    static const char *const blame[] = {"parallel.pipeline.microbatches", "train.global_batch", "parallel.dp_shard",
                                        "parallel.dp_replicate", NULL};
    int data_ranks = layout_sequence_ranks(l);
    char list[LIST_TEXT];
    if (!take_size(reader, batch, size, l)) return false;
    if (reader_has(reader, "parallel.pipeline.micro_batch_size")) return true;
    if (!reader_has(reader, "parallel.pipeline.microbatches")) {
        if (batch % data_ranks != 0) {
            return reader_fail_among(
                reader, blame + 1, "global_batch %d does not split into %d data ranks: %d / %d = %.2f; nearest: %s",
                batch, data_ranks, batch, data_ranks, (double)batch / data_ranks, multiples(batch, data_ranks, list));
        }
        l->microbatches = default_microbatches(batch / data_ranks, l->pp);
    }
    int64_t parts = (int64_t)data_ranks * l->microbatches;
    if (batch % parts == 0) return true;
    return reader_fail_among(
        reader, blame,
        "global_batch %d does not split into %d data ranks x %d micro-batches: %d / %lld = %.2f; nearest: %s", batch,
        data_ranks, l->microbatches, batch, (long long)parts, (double)batch / (double)parts,
        multiples(batch, parts, list));
}

static bool check_chunks(struct reader *reader, const struct run_config *config)
{
    int seq = config->model.seq, chunks = config->train.sequence_chunks;
    char list[LIST_TEXT];
    if (seq % chunks == 0 || config->layout.cp > 1) return true; /* else each rank's rows: check_context_rows */
    return reader_fail_among(reader, BLAME("train.sequence_chunks", "model.seq"), "seq %d does not split into %d chunks: %d / %d = %.2f; allowed: %s", seq,
                             chunks, seq, chunks, (double)seq / chunks, divisors(seq, seq, list));
}

/* ---- formats ---- */

static enum format format_at(int i)
{
    char name[CHOICE_TEXT];
    enum format format = FORMAT_FP32;
    if (choice_at(key_find("precision.compute")->options, i, name)) format_parse(name, &format);
    return format;
}

static bool set_precision(struct reader *reader, struct draft *draft)
{
    struct run_config *config = &draft->scenario.config;
    struct precision *p = &config->precision;
    enum format *const parts[PRECISION_KEYS] = {&p->param, &p->compute, &p->reduce, &p->accumulate,
                                                &p->softmax, &p->logits, &p->residual, &p->master};
    for (int i = 0; i < PRECISION_KEYS; i++) *parts[i] = format_at(draft->precision[i]);
    if (!reader_has(reader, "precision.master")) p->master = p->param == FORMAT_FP64 ? FORMAT_FP64 : FORMAT_FP32;
    if (!reader_has(reader, "train.loss_scale.kind"))
        config->train.loss_scale.kind = p->compute == FORMAT_FP16 ? LOSS_SCALING_DYNAMIC : LOSS_SCALING_NONE;
    return true;
}

/* Each pattern freezes something, and something is left to train. */
static bool check_frozen(struct reader *reader, const struct run_config *config)
{
    const char *list = config->train.frozen;
    struct arena *arena = arena_new("frozen", false);
    struct param_table params = param_table_new(&config->model, arena);
    struct train_config one = config->train;
    int frozen = 0;
    bool good = true;
    for (int i = 0; i < params.count; i++) frozen += train_is_frozen(&config->train, params.params[i].info.name);
    while (*list && good) {
        size_t length = strcspn(list, ",");
        bool any = length == 0;
        snprintf(one.frozen, sizeof one.frozen, "%.*s", (int)length, list);
        for (int i = 0; i < params.count && !any; i++) any = train_is_frozen(&one, params.params[i].info.name);
        if (!any) {
            good = reader_fail(reader, "train.frozen", "'%s' is no parameter's name nor the beginning of one with * behind it; they are %s, %s ...",
                               one.frozen, params.params[0].info.name, params.count > 1 ? params.params[1].info.name : "");
        }
        list += length + (list[length] == ',');
    }
    if (good && frozen == params.count) good = reader_fail(reader, "train.frozen", "'%s' freezes all %d parameters: nothing is left to train", config->train.frozen, frozen);
    arena_free(arena);
    return good;
}

static bool check_adapter(struct reader *reader, struct model_config *m)
{
    if (!reader_has(reader, "model.adapter_rows")) m->adapter_rows = m->adapter_used != ADAPTER_NEVER;
    return m->adapter_rows > 0 || m->adapter_used == ADAPTER_NEVER ||
           reader_fail_among(reader, BLAME("model.adapter_used", "model.adapter_rows"),
                             "adapter_used names who uses the adapters, and adapter_rows 0 says that there are none; allowed: adapter_rows 1 and more");
}

/* ---- recomputation ---- */

static const struct { const char *name; unsigned bits, needs; } recompute_parts[] = {
    {"moe_permute", RECOMPUTE_MOE_PERMUTE, 1},
    {"moe_activation", RECOMPUTE_MOE_ACTIVATION, 1},
    {"moe_rmsnorm", RECOMPUTE_MOE_RMSNORM, 1},
    {"moe_mla_qkv", RECOMPUTE_MOE_MLA_QKV, 3},
    {"dense_mla_qkv", RECOMPUTE_DENSE_MLA_QKV, 2},
    {"mla_qkv", RECOMPUTE_MOE_MLA_QKV | RECOMPUTE_DENSE_MLA_QKV, 2},
};
enum { RECOMPUTE_PARTS = sizeof recompute_parts / sizeof recompute_parts[0] };

static bool read_recompute_part(struct reader *reader, struct run_config *config, int at, const char *name)
{
    const char *names[RECOMPUTE_PARTS], *near;
    char path[40], shown[FOREIGN_TEXT];
    bool has_experts = config->model.moe.experts > 0, is_latent = config->model.attention == ATTENTION_MLA;
    snprintf(path, sizeof path, "recompute_parts[%d]", at);
    for (int i = 0; i < RECOMPUTE_PARTS; i++) {
        names[i] = recompute_parts[i].name;
        if (strcmp(names[i], name) != 0) continue;
        config->layout.recompute.parts |= recompute_parts[i].bits;
        if (recompute_parts[i].needs & 1 && !has_experts) return reader_fail(reader, path, "%s is a part of a layer with experts, and model.moe.experts is 0", name);
        return !(recompute_parts[i].needs & 2) || is_latent || reader_fail(reader, path, "%s is a part of latent attention, and model.attention is mha", name);
    }
    near = spelling_nearest(name, names, RECOMPUTE_PARTS);
    if (near) return reader_fail(reader, path, "unknown part '%s'; did you mean '%s'?", foreign(name, shown), near);
    return reader_fail(reader, path, "unknown part '%s'; allowed: moe_permute, moe_activation, moe_rmsnorm, moe_mla_qkv, dense_mla_qkv, mla_qkv", foreign(name, shown));
}

static bool read_recompute(struct reader *reader, struct run_config *config)
{
    const cJSON *list = reader_item(reader, "recompute_parts");
    int at = 0;
    for (const cJSON *item = list ? list->child : NULL; item; item = item->next) {
        if (!read_recompute_part(reader, config, at++, item->valuestring)) return false;
    }
    return !config->layout.recompute.parts || config->layout.recompute.mode != RECOMPUTE_FULL ||
           reader_fail_among(reader, BLAME("recompute_parts", "recompute"), "recompute full keeps nothing of a layer but its input, so there are no parts to name beside it; allowed: recompute none or selective, or no parts");
}

/* ---- the other workloads ---- */

/* Without parameters, batches and stages there is nothing for the other axes to split. */
static bool check_axes(struct reader *reader, const struct run_config *config)
{
    const struct layout *l = &config->layout;
    bool denoise = config->workload == WORKLOAD_DENOISE;
    const struct { const char *path, *name; int number; const char *why; } axes[] = {
        {"parallel.pp", "pp", l->pp, denoise ? "a sampler's iterations follow each other, each through all layers" : "there is one attention and no stack of layers to split into stages"},
        {"parallel.dp_shard", "dp_shard", l->dp_shard, "nothing is trained, so there is nothing to shard; parallel.dp_replicate gives several groups"},
        {"parallel.tp", "tp", l->tp, "heads are split by context method ulysses or usp here; tensor parallelism is a matter of training"},
        {"parallel.ep", "ep", l->ep, "there are no experts to spread"},
        {"parallel.etp", "etp", l->etp, "there are no experts to split"},
    };
    for (size_t i = 0; i < sizeof axes / sizeof axes[0]; i++) {
        if (axes[i].number > 1)
            return reader_fail_among(reader, BLAME(axes[i].path, "workload"), "%s %d with workload %s: %s; allowed: 1", axes[i].name, axes[i].number, denoise ? "denoise" : "attention", axes[i].why);
    }
    return true;
}

static bool check_documents(struct reader *reader, const struct run_config *config)
{
    const struct attention_config *a = &config->attention;
    int64_t sum = 0;
    for (int i = 0; i < a->documents_count; i++) sum += a->documents[i];
    if (a->documents_count > 0 && sum != config->model.seq) {
        return reader_fail_among(reader, BLAME("attention.documents", "model.seq"), "the %d documents have %lld tokens and a sequence %d; allowed: lengths that sum to seq",
                                 a->documents_count, (long long)sum, config->model.seq);
    }
    if (a->documents_count > 0 && !config->model.document_mask) {
        return reader_fail_among(reader, BLAME("attention.documents", "model.document_mask"),
                                 "documents are given and model.document_mask is false, so that nothing would keep them apart; allowed: document_mask true, or no documents");
    }
    if (a->joint > config->model.seq) {
        return reader_fail_among(reader, BLAME("attention.joint", "model.seq"), "joint %d of a sequence of %d rows; allowed: 0 to %d", a->joint, config->model.seq, config->model.seq);
    }
    return true;
}

static bool check_attention_context(struct reader *reader, struct run_config *config)
{
    struct layout *l = &config->layout;
    char why[320] = "", list[LIST_TEXT];
    bool is_usp = !strcmp(l->context.method, "usp");
    if (!reader_has(reader, "parallel.context.ulysses")) l->context.ulysses = default_ulysses(l->cp, config->model.kv_heads);
    if (is_usp && l->cp % l->context.ulysses != 0)
        return reader_fail_among(reader, BLAME("parallel.context.ulysses", "parallel.cp"), "cp %d does not split into groups of ulysses %d: %d / %d = %.2f; allowed ulysses: %s", l->cp,
                                 l->context.ulysses, l->cp, l->context.ulysses, (double)l->cp / l->context.ulysses, divisors(l->cp, l->cp, list));
    return attention_allowed(config, why) ||
           reader_fail_among(reader, BLAME("parallel.context.method", "parallel.context.ulysses", "parallel.cp", "model.kv_heads", "model.heads"), "%s", why);
}

/* Parts that one attention has not round nothing, whatever their format: a run is as narrow as its activations and its softmax. */
static bool drop_formats(struct run_config *config)
{
    struct precision *p = &config->precision;
    enum format activation = precision_activation(p), *unused[] = {&p->param, &p->reduce, &p->accumulate, &p->logits, &p->residual};
    for (size_t i = 0; i < sizeof unused / sizeof *unused; i++) {
        if (format_traits[*unused[i]].unit_roundoff > format_traits[activation].unit_roundoff) *unused[i] = activation;
    }
    return true;
}

static bool validate_attention(struct reader *reader, struct draft *draft)
{
    struct run_config *config = &draft->scenario.config;
    config->model.rope = false;             /* queries and keys are given as they are */
    config->attention.joint_rear = draft->joint_place == 1;
    config->train.steps = 1;
    config->layout.microbatches = 1;
    config->layout.layers_per_stage[0] = config->model.layers = 1;
    config->model.attention = ATTENTION_MHA;
    return check_heads(reader, draft, &config->model) && check_axes(reader, config) && check_ranks(reader, &config->layout) &&
           set_precision(reader, draft) && drop_formats(config) && check_documents(reader, config) && check_attention_context(reader, config);
}

/* Inputs, results and what was taken over, in fp64, for two runs of the parallel kind and the reference. */
static bool check_attention_memory(struct reader *reader, const struct run_config *config)
{
    const struct model_config *m = &config->model;
    double rows = (double)config->layout.dp_replicate * config->attention.batch * m->seq, width = (2.0 * m->heads + 2.0 * m->kv_heads) * m->head_dim;
    double total = 8 * rows * width * 12 + 512e3 * layout_ranks(&config->layout);
    if (total <= bytes_max) return true;
    return reader_fail_among(reader, BLAME("model.seq", "attention.batch", "parallel"), "this needs about %.3g GB for %.3g rows of %d query and %d key/value heads of width %d; at most %.0f GB are allowed",
                             total / 1e9, rows, m->heads, m->kv_heads, m->head_dim, bytes_max / 1e9);
}

static bool check_denoise_model(struct reader *reader, const struct run_config *config)
{
    if (config->model.moe.experts > 0)
        return reader_fail_among(reader, BLAME("model.moe.experts", "model.arch", "workload"), "workload denoise applies dense layers; allowed: model.moe.experts 0");
    if (config->model.document_mask)
        return reader_fail_among(reader, BLAME("model.document_mask", "workload"), "the latents of workload denoise have no documents; allowed: document_mask false");
    return config->model.dropout == 0 || reader_fail_among(reader, BLAME("model.dropout", "workload"), "workload denoise only infers; allowed: dropout 0");
}

/* Latents of every iteration, in four runs. */
static bool check_denoise_memory(struct reader *reader, const struct run_config *config)
{
    double numbers = (double)config->layout.dp_replicate * config->attention.batch * config->model.seq * config->model.dim * config->iterations, total = 24 * numbers + 512e3 * layout_ranks(&config->layout);
    return total <= bytes_max || reader_fail_among(reader, BLAME("model.iterations", "model.seq", "model.dim"), "this needs about %.3g GB for the latents of %d iterations; at most %.0f GB are allowed", total / 1e9,
                                                   config->iterations, bytes_max / 1e9);
}

static bool validate_denoise(struct reader *reader, struct draft *draft)
{
    struct run_config *config = &draft->scenario.config;
    config->train.steps = config->iterations;
    config->train.global_batch = config->layout.dp_replicate;
    config->layout.microbatches = 1;
    return set_architecture(reader, draft) && check_latent(reader, draft, &config->model) && check_denoise_model(reader, config) && check_heads(reader, draft, &config->model) &&
           check_axes(reader, config) && check_ranks(reader, &config->layout) && check_context(reader, draft) && check_layers(reader, config->model.layers, &config->layout) &&
           set_precision(reader, draft);
}

bool validate_scenario(struct reader *reader, struct draft *draft)
{
    struct run_config *config = &draft->scenario.config;
    struct layout *l = &config->layout;
    l->context.tree = draft->merge_order == 1;
    if (!reader_has(reader, "model.causal")) config->model.causal = config->workload != WORKLOAD_DENOISE;
    if (config->workload == WORKLOAD_ATTENTION) return validate_attention(reader, draft);
    config->attention.joint = 0;            /* no other workload has them */
    if (config->workload == WORKLOAD_DENOISE) return validate_denoise(reader, draft);
    config->train.beta1 = draft->betas[0];
    config->train.beta2 = draft->betas[1];
    l->send_sync = draft->send == 1;
    return set_architecture(reader, draft) && check_latent(reader, draft, &config->model) && check_experts(reader, draft, &config->model.moe) &&
           check_heads(reader, draft, &config->model) && check_adapter(reader, &config->model) && check_ranks(reader, l) &&
           read_tensor_parts(reader, &config->layout) && check_tensor_parallel(reader, &config->model, l) && check_sequence_parallel(reader, &config->model, l) && check_context(reader, draft) &&
           check_expert_parallel(reader, &config->model, l) && check_layers(reader, config->model.layers, l) && check_sharding(reader, l) &&
           check_batch(reader, config->train.global_batch, draft->micro_batch_size, l) && check_chunks(reader, config) && read_recompute(reader, config) && set_precision(reader, draft) && check_frozen(reader, config);
}

/* ---- size ---- */

static bool check_memory(struct reader *reader, const struct run_config *config)
{
    struct estimate e = estimate_run(config);
    double total = estimate_total_bytes(&e);
    if (total <= bytes_max) return true;
    const struct { double bytes; const char *what, *path;
    } shares[] = {
        {e.state, "parameters, gradients and optimizer state", "model.dim"},
        {e.history, "the record of every step", "train.steps"},
        {e.activations, "activations", "model.seq"},
        {e.data, "tokens", "train.global_batch"},
        {e.ranks, "ranks", "parallel.dp_shard"},
    };
    int largest = 0;
    for (int i = 1; i < 5; i++) {
        if (shares[i].bytes > shares[largest].bytes) largest = i;
    }
    reader_fail_among(reader, BLAME(shares[largest].path, "model", "parallel"),
                      "this needs about %.3g GB, most of it (%.3g GB) for %s: %.3g parameters, %d ranks, %d steps of "
                      "%d sequences of %d tokens; "
                      "at most %.0f GB are allowed",
                      total / 1e9, shares[largest].bytes / 1e9, shares[largest].what, e.parameters,
                      layout_ranks(&config->layout), config->train.steps, config->train.global_batch, config->model.seq,
                      bytes_max / 1e9);
    return false;
}

/* A step without a single target would divide by 0. Only steps of few tokens, or a text of nothing but line ends,
 * come to that; so of longer steps only the first is looked at. */
static bool check_targets(struct reader *reader, const struct run_config *config)
{
    const int64_t few = 4096, most = 4000000; /* tokens */
    int64_t batch = config->train.global_batch, tokens = batch * config->model.seq;
    int64_t steps = tokens > few ? 1 : config->train.steps * tokens > most ? most / tokens : config->train.steps;
    if (tokens > most) return true;
    struct arena *arena = arena_new("targets", false);
    struct data data = data_pack(&config->data, config->model.seq, batch * steps, arena);
    int empty = -1;
    for (int s = 0; s < steps && empty < 0; s++) {
        if (data_count(&data, s * batch, batch).valid == 0) empty = s;
    }
    arena_free(arena);
    return empty < 0 ||
           reader_fail_among(reader, BLAME("data.text", "data.packing", "train.global_batch"),
                             "step %d has no token to predict: each of its tokens is the last of a document; allowed: "
                             "longer paragraphs, more sequences a step, or packing stream",
                             empty);
}

bool validate_size(struct reader *reader, const struct scenario *scenario)
{
    if (scenario->config.workload == WORKLOAD_ATTENTION) return check_attention_memory(reader, &scenario->config);
    if (scenario->config.workload == WORKLOAD_DENOISE) return check_denoise_memory(reader, &scenario->config);
    return check_memory(reader, &scenario->config) && check_targets(reader, &scenario->config);
}
