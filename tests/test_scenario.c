/* test_scenario: what a scenario may say, and that everything else is refused with its place and the way out. */
#include <locale.h>
#include <stdint.h>
#include <sys/stat.h>

#include "model/train.h"
#include "scenarios/corpus.h"
#include "support/scenario_files.h"
#include "tests/support/run_suite.h"

/* ---- refusals: text, line, column, path, words ---- */

struct refused { const char *text; int line, column; const char *path, *words; };
#define P "\"parallel\":{}"

static const struct refused refusals[] = {
    {"{}", 1, 1, "parallel", "'parallel' is missing"},
    {"{" P ",}", 1, 15, "", "a comma before '}'"},
    {"{\n  \"parallel\": {\n    \"pipeline\": {\"microbatch\": 3}}}", 3, 18, "parallel.pipeline.microbatch",
     "unknown key 'microbatch'; did you mean 'microbatches'?"},
    {"{" P ",\"modle\":{}}", 1, 16, "modle", "did you mean 'model'?"},
    {"{" P ",\"pp\":2}", 1, 16, "pp", "did you mean 'parallel.pp'?"},
    {"{" P ",\"quux\":2}", 1, 16, "quux", "allowed here: 'hpsim', 'name'"},
    {"{" P ",\"model.dim\":64}", 1, 16, "model.dim", "unknown key 'model.dim'"},
    {"{" P ",\"faults[]\":64}", 1, 16, "faults[]", "unknown key"},
    {"{" P ",\"\\u001b[2J\":1}", 1, 16, "?[2J", "unknown key '?[2J'"},
    {"{" P ",\"\":1}", 1, 16, "", "unknown key ''"},
    {"{" P ",\"Model\":{}}", 1, 16, "Model", "did you mean 'model'?"},
    {"{\"parallel\":7}", 1, 13, "parallel", "7 found; an object is allowed"},
    {"{\"parallel\":null}", 1, 13, "parallel", "null found"},
    {"{\"parallel\":[]}", 1, 13, "parallel", "a list found"},
    {"{" P ",\"parallel\":{}}", 1, 16, "parallel", "given twice"},
    {"{" P ",\"hpsim\":2}", 1, 24, "hpsim", "2 found; allowed: an integer from 1 to 1"},
    {"{" P ",\"hpsim\":\"1\"}", 1, 24, "hpsim", "'1' found"},
    {"{" P ",\"name\":7}", 1, 23, "name", "7 found; allowed: a string of at most 127 bytes"},
    {"{" P ",\"seed\":-1}", 1, 23, "seed", "an integer from 0"},
    {"{" P ",\"seed\":1.5}", 1, 23, "seed", "1.5 found"},
    {"{" P ",\"seed\":18446744073709551615}", 1, 23, "seed", "9000000000000000"},
    {"{" P ",\"workload\":\"trian\"}", 1, 27, "workload", "did you mean 'train'?"},
    {"{\"workload\":\"denoise\",\"parallel\":{\"tp\":2}}", 1, 40, "parallel.tp", "tp 2 with workload denoise: heads are split by context method"},
    {"{\"workload\":\"attention\",\"parallel\":{\"dp_shard\":3}}", 1, 48, "parallel.dp_shard", "nothing is trained"},
    {"{\"workload\":\"attention\",\"parallel\":{},\"attention\":{\"joint\":65}}", 1, 60, "attention.joint", "joint 65 of a sequence of 64 rows; allowed: 0 to 64"},
    {"{" P ",\"model\":{\"layers\":0}}", 1, 34, "model.layers", "0 found; allowed: an integer from 1 to 1024"},
    {"{" P ",\"model\":{\"layers\":1e300}}", 1, 34, "model.layers", "1e+300 found"},
    {"{" P ",\"model\":{\"layers\":true}}", 1, 34, "model.layers", "true found"},
    {"{" P ",\"model\":{\"rope\":0}}", 1, 32, "model.rope", "0 found; allowed: true or false"},
    {"{" P ",\"model\":{\"vocab\":255}}", 1, 33, "model.vocab", "from 256"},
    {"{" P ",\"model\":{\"attention\":\"mla\",\"kv_heads\":2}}", 1, 54, "model.kv_heads", "kv_heads 2 with latent attention"},
    {"{" P ",\"model\":{\"dropout\":1.1}}", 1, 35, "model.dropout", "a number from 0 to 0.99"},
    {"{" P ",\"model\":{\"iterations\":0}}", 1, 38, "model.iterations", "0 found; allowed: an integer from 1"},
    {"{" P ",\"model\":{\"attention\":\"mla\",\"head_dim\":6,\"mla\":{\"head_dim\":8}}}", 1, 74, "model.mla.head_dim", "contradict each other"},
    {"{" P ",\"model\":{\"moe\":{\"experts\":6,\"top_k\":7}}}", 1, 52, "model.moe.top_k", "top_k 7 of 6 experts; allowed: 1 to 6"},
    {"{" P ",\"model\":{\"moe\":{\"experts\":6,\"groups\":4}}}", 1, 53, "model.moe.groups", "experts 6 do not split into groups 4: 6 / 4 = 1.50; allowed: 1, 2, 3, 6"},
    {"{" P ",\"model\":{\"moe\":{\"experts\":6,\"groups\":3,\"groups_chosen\":4}}}", 1, 71, "model.moe.groups_chosen", "groups_chosen 4 of 3 groups"},
    {"{" P ",\"model\":{\"moe\":{\"experts\":6,\"groups\":3,\"groups_chosen\":1}}}", 1, 71, "model.moe.groups_chosen", "top_k 4 of 2 experts in 1 groups of 2"},
    {"{" P ",\"model\":{\"moe\":{\"dense_layers\":[0,-1]}}}", 1, 50, "model.moe.dense_layers[1]", "-1 found"},
    {"{" P ",\"model\":{\"moe\":{\"capacity_factor\":-1}}}", 1, 50, "model.moe.capacity_factor", "-1 found"},
    {"{" P ",\"model\":{\"moe\":{\"drop_policy\":\"prob\"}}}", 1, 46, "model.moe.drop_policy", "did you mean 'probs'?"},
    {"{" P ",\"model\":{\"norm_eps\":0}}", 1, 36, "model.norm_eps", "0 found"},
    {"{" P ",\"model\":{\"head_dim\":5}}", 1, 36, "model.head_dim", "head_dim 5 is odd, and rope turns pairs"},
    {"{" P ",\"model\":{\"heads\":6}}", 1, 33, "model.heads", "dim 64 does not split into heads 6: 64 / 6 = 10.67; nearest dim: 60, 66"},
    {"{" P ",\"model\":{\"heads\":6,\"kv_heads\":4,\"dim\":24}}", 1, 46, "model.kv_heads", "6 / 4 = 1.50; allowed kv_heads: 1, 2, 3, 6"},
    {"{" P ",\"model\":{\"weights\":7}}", 1, 35, "model.weights", "or null"},
    {"{" P ",\"model\":{\"weights\":\"none.safetensors\"}}", 1, 35, "model.weights", "weights 'none.safetensors' does not exist"},
    {"{" P ",\"data\":{\"text\":\"none.txt\"}}", 1, 31, "data.text", "text 'none.txt' does not exist"},
    {"{" P ",\"data\":{\"text\":\".\"}}", 1, 31, "data.text", "is a folder"},
    {"{" P ",\"data\":{\"tokenizer\":\"bpe\"}}", 1, 36, "data.tokenizer", "'bpe' found; allowed: 'bytes'"},
    {"{" P ",\"data\":{\"packing\":\"stream\",\"packing\":\"stream\"}}", 1, 43, "data.packing", "given twice"},
    {"{" P ",\"train\":{\"steps\":\"4\"}}", 1, 33, "train.steps", "'4' found"},
    {"{" P ",\"train\":{\"steps\":2147483648}}", 1, 33, "train.steps", "2147483648 found"},
    {"{" P ",\"train\":{\"loss_normalization\":\"megatrn\"}}", 1, 46, "train.loss_normalization", "megatron"},
    {"{" P ",\"train\":{\"grad_clip\":-0.5}}", 1, 37, "train.grad_clip", "or null"},
    {"{" P ",\"train\":{\"optimizer\":\"sgd\"}}", 1, 37, "train.optimizer", "'sgd' found; an object is allowed"},
    {"{" P ",\"train\":{\"optimizer\":{\"kind\":\"adam\"}}}", 1, 45, "train.optimizer.kind", "did you mean 'adamw'?"},
    {"{" P ",\"train\":{\"optimizer\":{\"betas\":[0.9]}}}", 1, 46, "train.optimizer.betas", "a list of 1 found"},
    {"{" P ",\"train\":{\"optimizer\":{\"betas\":[0.9,1]}}}", 1, 51, "train.optimizer.betas[1]", "1 found"},
    {"{" P ",\"train\":{\"optimizer\":{\"lr\":1e400}}}", 1, 43, "train.optimizer.lr", "too large"},
    {"{" P ",\"train\":{\"optimizer\":{\"eps\":0}}}", 1, 44, "train.optimizer.eps", "0 found"},
    {"{\"parallel\":{\"pp\":3}}", 1, 19, "parallel.pp", "layers 8 do not split into pp 3 x chunks 1; allowed pp: 1, 2, 4, 8"},
    {"{\"parallel\":{\"pp\":257}}", 1, 19, "parallel.pp", "from 1 to 256"},
    {"{\"parallel\":{\"pp\":2,\"dp_shard\":4096}}", 1, 32, "parallel.dp_shard", "= 8192 ranks; at most 4096"},
    {"{\"parallel\":{\"dp_shard\":4096,\"dp_replicate\":4096,\"pp\":256}}", 1, 25, "parallel.dp_shard", "= 4294967296 ranks"},
    {"{\"parallel\":{\"cp\":65}}", 1, 19, "parallel.cp", "cp 65 of sequences of 64 positions leaves ranks without any: 64 / 65 = 0.98; allowed cp: 1 to 64"},
    {"{\"parallel\":{\"cp\":6,\"context\":{\"method\":\"usp\",\"ulysses\":4}}}", 1, 57, "parallel.context.ulysses", "cp 6 does not split into groups of ulysses 4: 6 / 4 = 1.50; allowed ulysses: 1, 2, 3, 6"},
    {"{\"parallel\":{\"cp\":4,\"dp_shard\":2048}}", 1, 32, "parallel.dp_shard", "x cp 4 x tp 1 = 8192 ranks; at most 4096"},
    {"{\"parallel\":{\"cp\":2,\"tp\":2,\"sequence_parallel\":true},\"model\":{\"seq\":26}}", 1, 69, "model.seq", "cp rank 0 of 2 has 13 of 26 positions, which do not split into slices for tp 2: 13 / 2 = 6.50; nearest seq: 24, 28"},
    {"{\"parallel\":{\"cp\":3},\"train\":{\"sequence_chunks\":4}}", 1, 49, "train.sequence_chunks", "cp rank 0 of 3 has 21 of 64 positions, which do not split into sequence_chunks 4: 21 / 4 = 5.25; nearest seq: 60, 72"},
    {"{\"parallel\":{\"cp\":2,\"ep\":2,\"experts\":{\"dispatcher\":\"replicated\"}},\"model\":{\"moe\":{\"experts\":12}}}", 1, 52, "parallel.experts.dispatcher", "and cp 2 gives each some of its own"},
    {"{\"parallel\":{\"cp\":2,\"ep\":4},\"model\":{\"moe\":{\"experts\":12}}}", 1, 26, "parallel.ep", "dp_shard x cp 2 does not split into groups of ep 4: 2 / 4 = 0.50; allowed ep: 1, 2"},
    {"{\"parallel\":{\"ep\":2}}", 1, 19, "parallel.ep", "ep 2, and the model has no experts"},
    {"{\"parallel\":{\"ep\":2},\n\"model\":{\"moe\":{\"experts\":12}}}", 1, 19, "parallel.ep", "dp_shard 1 does not split into groups of ep 2: 1 / 2 = 0.50; allowed ep: 1"},
    {"{\"parallel\":{\"ep\":8,\"dp_shard\":4,\"tp\":4,\"experts\":{\"over_tp\":true}},\n\"model\":{\"moe\":{\"experts\":12}}}", 1, 19, "parallel.ep",
     "experts 12 do not split into ep 8: 12 / 8 = 1.50; allowed ep: 1, 2, 4"},
    {"{\"parallel\":{\"ep\":3,\"dp_shard\":3,\"tp\":2,\"experts\":{\"over_tp\":true}},\n\"model\":{\"moe\":{\"experts\":12}}}", 1, 19, "parallel.ep", "over tp 2 would hold"},
    {"{\"parallel\":{\"ep\":4,\"dp_shard\":3,\"tp\":2,\"experts\":{\"over_tp\":true}},\n\"model\":{\"moe\":{\"experts\":12}}}", 1, 19, "parallel.ep", "dp_shard 3 x tp 2 = 6 ranks do not split into groups of ep 4"},
    {"{\"parallel\":{\"ep\":4,\"dp_shard\":18},\n\"train\":{\"global_batch\":18},\"model\":{\"moe\":{\"experts\":12}}}", 1, 19, "parallel.ep", "18 / 4 = 4.50; allowed ep: 1, 2, 3, 6"},
    {"{\"parallel\":{\"ep\":3,\"dp_shard\":3,\"tp\":2,\"experts\":{\"over_tp\":true}},\n\"model\":{\"moe\":{\"experts\":12}}}", 1, 19, "parallel.ep", "allowed ep: 1, 2, 6"},
    {"{\"parallel\":{\"tp\":2,\"tensor_parts\":\"attention\"}}", 1, 36, "parallel.tensor_parts", "'attention' found; allowed: a list"},
    {"{\"parallel\":{\"etp\":2},\n\"model\":{\"moe\":{\"experts\":12}}}", 1, 20, "parallel.etp", "etp 2 with tp 1; allowed: 1, or tp 2 beside it"},
    {"{\"parallel\":{\"etp\":3,\"tp\":2},\n\"model\":{\"moe\":{\"experts\":12}}}", 1, 20, "parallel.etp", "etp 3 with tp 2; allowed: 1, or 2"},
    {"{\"parallel\":{\"etp\":2,\"tp\":2,\"experts\":{\"over_tp\":true}},\n\"model\":{\"moe\":{\"experts\":12}}}", 1, 20, "parallel.etp", "allowed: one of the two"},
    {"{\"parallel\":{\"tp\":2,\"ep\":2,\"experts\":{\"dispatcher\":\"replicated\",\"over_tp\":true}},\n\"model\":{\"moe\":{\"experts\":12}}}", 1, 52, "parallel.experts.dispatcher", "replicated with over_tp"},
    {"{\"parallel\":{\"dp_shard\":4,\"ep\":4,\"experts\":{\"inner_group\":3}},\n\"model\":{\"moe\":{\"experts\":12}}}", 1, 59, "parallel.experts.inner_group", "ep 4 does not split into inner groups of 3: 4 / 3 = 1.33; allowed inner_group: 1, 2, 4"},
    {"{\"parallel\":{\"tp\":3}}", 1, 19, "parallel.tp", "heads 4 do not split into tp 3: 4 / 3 = 1.33; nearest heads: 3, 6"},
    {"{\"parallel\":{\"tp\":2,\"sequence_parallel\":true},\"model\":{\"seq\":21}}", 1, 62, "model.seq", "do not split into slices for tp 2: 21 / 2 = 10.50; nearest seq: 20, 22"},
    {"{\"parallel\":{\"tp\":2,\"dp_shard\":2,\"ep\":2,\"sequence_parallel\":true,\"experts\":{\"dispatcher\":\"replicated\"}},\"model\":{\"moe\":{\"experts\":12}}}", 1, 90,
     "parallel.experts.dispatcher", "replicated is not built with sequence_parallel"},
    {"{\"parallel\":{\"tp\":4,\"ep\":2,\"sequence_parallel\":true,\"experts\":{\"over_tp\":true}},\"model\":{\"moe\":{\"experts\":12}}}", 1, 26, "parallel.ep",
     "gives tp ranks with different tokens the same experts: 2 / 4 = 0.50"},
    {"{\"parallel\":{\"dp_shard\":3}}", 1, 25, "parallel.dp_shard", "global_batch 16 does not split into 3 data ranks: 16 / 3 = 5.33; nearest: 15, 18"},
    {"{\"parallel\":{\"dp_shard\":3,\"pipeline\":{\"microbatches\":8}},\n\"train\":{\"global_batch\":32}}", 1, 54,
     "parallel.pipeline.microbatches", "32 does not split into 3 data ranks x 8 micro-batches: 32 / 24 = 1.33; nearest: 24, 48"},
    {"{\"parallel\":{\"pipeline\":{\"microbatches\":2,\"micro_batch_size\":8}}}", 1, 62, "parallel.pipeline.micro_batch_size", "one makes the other"},
    {"{\"parallel\":{\"dp_shard\":2,\"pipeline\":{\"micro_batch_size\":3}}}", 1, 58, "parallel.pipeline.micro_batch_size", "16 / 6 = 2.67; nearest: 12, 18"},
    {"{" P ",\"train\":{\"sequence_chunks\":3}}", 1, 43, "train.sequence_chunks", "seq 64 does not split into 3 chunks"},
    {"{" P ",\"train\":{\"gc_interval_steps\":-1}}", 1, 45, "train.gc_interval_steps", "an integer from 0"},
    {"{\"parallel\":{\"overlap\":{\"tp\":\"mc3\"}}}", 1, 30, "parallel.overlap.tp", "did you mean 'mc2'?"},
    {"{\"parallel\":{\"overlap\":{\"all_to_all\":1}}}", 1, 38, "parallel.overlap.all_to_all", "true or false"},
    {"{\"parallel\":{\"pipeline\":{\"schedule\":\"ZBV\"}}}", 1, 37, "parallel.pipeline.schedule", "not there yet; there is: GPipe, 1F1B"},
    {"{\"parallel\":{\"pipeline\":{\"schedule\":\"1f1b\"}}}", 1, 37, "parallel.pipeline.schedule", "did you mean '1F1B'?"},
    {"{\"parallel\":{\"pipeline\":{\"chunks\":2}}}", 1, 35, "parallel.pipeline.chunks", "not there yet"},
    {"{\"parallel\":{\"pipeline\":{\"csv\":\"x.csv\"}}}", 1, 32, "parallel.pipeline.csv", "not there yet; there is: null"},
    {"{\"parallel\":{\"pipeline\":{\"send\":1}}}", 1, 33, "parallel.pipeline.send", "1 found; allowed: 'async' or 'sync'"},
    {"{\"parallel\":{\"pp\":2,\"pipeline\":{\"layers_per_stage\":[3,3,2]}}}", 1, 52, "parallel.pipeline.layers_per_stage", "3 numbers for pp 2"},
    {"{\"parallel\":{\"pp\":2,\"pipeline\":{\"layers_per_stage\":[3,4]}}}", 1, 52, "parallel.pipeline.layers_per_stage", "sums to 7; allowed: 8"},
    {"{\"parallel\":{\"pp\":2,\"pipeline\":{\"layers_per_stage\":[8,0]}}}", 1, 55, "parallel.pipeline.layers_per_stage[1]", "0 found"},
    {"{\"parallel\":{\"fsdp\":{\"bucket_elements\":7}}}", 1, 40, "parallel.fsdp.bucket_elements", "bucket_elements 7 needs zero 0, 1 or 2"},
    {"{\"parallel\":{\"fsdp\":{\"zero\":4}}}", 1, 29, "parallel.fsdp.zero", "from 0 to 3"},
    {"{\"parallel\":{\"fsdp\":{\"zero\":0,\"reshard_after_forward\":true}}}", 1, 55, "parallel.fsdp.reshard_after_forward", "needs zero 3, and zero is 0"},
    {"{\"parallel\":{\"fsdp\":{\"prefetch\":2,\"zero\":1}}}", 1, 33, "parallel.fsdp.prefetch", "prefetch 2 needs zero 3, and zero is 1"},
    {"{\"parallel\":{\"fsdp\":{\"zero\":4}}}", 1, 29, "parallel.fsdp.zero", "4 found; allowed: an integer from 0 to 3"},
    {"{\"parallel\":{\"collectives\":{\"all_reduce\":\"star\"}}}", 1, 42, "parallel.collectives.all_reduce", "'star' found; allowed: 'ring', 'fold', 'tree' or 'halving_doubling'"},
    {"{\"parallel\":{\"collectives\":{\"all_gahter\":\"ring\"}}}", 1, 29, "parallel.collectives.all_gahter", "did you mean 'all_gather'?"},
    {"{" P ",\"precision\":\"fp31\"}", 1, 28, "precision", "'fp31' found; allowed: 'fp64', 'fp32'"},
    {"{" P ",\"precision\":\"fp8_e5m2\"}", 1, 28, "precision", "'fp8_e5m2' found; allowed: 'fp64', 'fp32', 'bf16' or 'fp16'"},
    {"{" P ",\"precision\":{\"reduce\":\"fp8_e4m3\"}}", 1, 38, "precision.reduce", "'fp8_e4m3' found; allowed: 'fp64', 'fp32', 'bf16' or 'fp16'"},
    {"{" P ",\"precision\":7}", 1, 28, "precision", "7 found"},
    {"{" P ",\"recompute\":\"whole\"}", 1, 28, "recompute", "'none', 'selective' or 'full'"},
    {"{" P ",\"recompute_parts\":[\"moe_permute\"]}", 1, 35, "recompute_parts[0]", "model.moe.experts is 0"},
    {"{" P ",\"recompute_parts\":[\"mla_qkvs\"]}", 1, 35, "recompute_parts[0]", "did you mean 'mla_qkv'?"},
    {"{" P ",\"recompute_parts\":[\"dense_mla_qkv\"]}", 1, 35, "recompute_parts[0]", "model.attention is mha"},
    {"{" P ",\"machine\":{\"tflops\":0}}", 1, 36, "machine.tflops", "0 found"},
    {"{" P ",\"machine\":{\"intra\":{\"latency\":0}}}", 1, 36, "machine.intra.latency", "did you mean 'latency_us'?"},
    {"{" P ",\"plugin\":\"x.so\"}", 1, 25, "plugin", "plug-in 'x.so' does not exist"},
    {"{" P ",\"faults\":{}}", 1, 25, "faults", "an object found; allowed: a list of at most 16 objects"},
    {"{" P ",\"faults\":[{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}]}", 1, 25, "faults", "a list found"},
    {"{" P ",\"faults\":[7]}", 1, 26, "faults[0]", "7 found; allowed: an object"},
    {"{" P ",\"expect\":{\"verdict\":\"ok\"}}", 1, 36, "expect.verdict", "'consistent', 'diverged', 'violated' or 'deadlock'"},
    {"{" P ",\"expect\":{\"checks\":[\"oracel\"]}}", 1, 36, "expect.checks[0]", "unknown check 'oracel'; did you mean 'oracle'?"},
    {"{" P ",\"expect\":{\"site\":\"pp.loss.scal\"}}", 1, 33, "expect.site", "did you mean 'pp.loss.scale'?"},
    {"{" P ",\"expect\":{\"ranks\":[0,-1]}}", 1, 37, "expect.ranks[1]", "-1 found"},
    {"{" P ",\"model\":{\"dim\":65536,\"heads\":1024,\"ffn\":1048576,\"layers\":1024}}", 1, 24, "model", "at most 16 GB are allowed"},
    {"{" P ",\"model\":{\"seq\":1048576,\"vocab\":1048576},\"train\":{\"global_batch\":1048576}}", 1, 31, "model.seq", "GB) for activations"},
    {"{" P ",\"train\":{\"steps\":1000000}}", 1, 33, "train.steps", "GB) for the record of every step"},
};

/* Line, column, key path and words of each refusal; the file is named, and it counts as the user's input. */
START_TEST(refuses)
{
    const struct refused *r = &refusals[_i];
    struct error error = files_refuse(r->text, NULL, r->path, r->words);
    ck_assert_msg(error.line == r->line && error.column == r->column, "%s: %d:%d", r->text, error.line, error.column);
    ck_assert_str_eq(error.file, files_path("s.json"));
}
END_TEST

/* ---- files ---- */

static void refuse_path(const char *path, const char *words)
{
    struct error error = {0};
    ck_assert_ptr_null(scenario_load(path, NULL, &error));
    ck_assert_int_eq(error.kind, ERROR_INPUT);
    ck_assert_msg(strstr(error.message, words), "%s: %s", path, error.message);
    ck_assert_str_eq(error.file, path);
}

/* What is no readable plain file of at most 16 MB is refused before a byte of it is read; nothing waits for a pipe. */
START_TEST(files)
{
    refuse_path(files_path("none.json"), "does not exist");
    refuse_path("", "does not exist");
    refuse_path(files_folder, "is a folder");
    refuse_path("/dev/zero", "not a regular file");
    ck_assert_int_eq(mkfifo(files_path("pipe"), 0600), 0);
    refuse_path(files_path("pipe"), "not a regular file");
    files_write("empty.json", "", 0);
    refuse_path(files_path("empty.json"), "is empty");
    refuse_path(files_path("empty.json/x"), "does not exist");
    files_write("sparse.json", "{", 1);
    ck_assert_int_eq(truncate(files_path("sparse.json"), 100 << 20), 0);
    refuse_path(files_path("sparse.json"), "has 104857600 bytes; at most 16777216 are allowed");
    ck_assert_int_eq(truncate(files_path("sparse.json"), 1 << 20), 0);
    refuse_path(files_path("sparse.json"), "NUL byte");
    if (geteuid() != 0) { /* root may read everything */
        files_write("secret.json", "{}", 2);
        ck_assert_int_eq(chmod(files_path("secret.json"), 0), 0);
        refuse_path(files_path("secret.json"), "may not be read");
    }
}
END_TEST

/* The text: relative to the scenario, two bytes at least, at most 64 MB, with something to predict. */
START_TEST(texts)
{
    struct error error;
    files_write("t.txt", "ab", 2);
    struct scenario *s = files_accept("{" P ",\"data\":{\"text\":\"t.txt\"}}", NULL);
    ck_assert_int_eq(s->config.data.text_bytes, 2);
    ck_assert_mem_eq(s->config.data.text, "ab", 2);
    ck_assert_ptr_eq(s->config.data.text, s->text);
    ck_assert_str_eq(s->text_path, files_path("t.txt"));
    scenario_free(s);

    files_write("t.txt", "a", 1);
    files_refuse("{" P ",\"data\":{\"text\":\"t.txt\"}}", NULL, "data.text", "2 at least");
    files_write("t.txt", "\n\n\n\n", 4);
    files_refuse("{" P ",\"data\":{\"text\":\"t.txt\"}}", NULL, "data.text", "step 0 has no token to predict");
    files_write("t.txt", "ab\n\n", 4);
    ck_assert_int_eq(truncate(files_path("t.txt"), (64 << 20) + 1), 0);
    files_refuse("{" P ",\"data\":{\"text\":\"t.txt\"}}", NULL, "data.text", "text 't.txt' has 67108865 bytes; at most 67108864");

    /* Without a corpus.txt beside it the shipped one is used, else that one. */
    s = files_accept("{" P "}", NULL);
    ck_assert_int_eq(s->config.data.text_bytes, (int64_t)corpus_bytes);
    ck_assert_mem_eq(s->config.data.text, corpus_text, corpus_bytes);
    scenario_free(s);
    files_write("corpus.txt", "xyz", 3);
    s = files_load_with("{" P "}", NULL, &error);
    ck_assert_int_eq(s->config.data.text_bytes, 3);
    scenario_free(s);
}
END_TEST

/* The built-in text is corpus.txt, byte by byte. */
START_TEST(built_in_text)
{
    FILE *file = fopen(files_shipped("corpus.txt"), "rb");
    ck_assert_msg(file, "%s", files_shipped("corpus.txt"));
    char *text = malloc(corpus_bytes + 2);
    ck_assert_uint_eq(fread(text, 1, corpus_bytes + 2, file), corpus_bytes);
    ck_assert_mem_eq(text, corpus_text, corpus_bytes);
    free(text);
    fclose(file);
}
END_TEST

/* Every shipped scenario loads, also without its faults. */
START_TEST(shipped_scenarios)
{
    char folder[1024];
    int count = 0;
    snprintf(folder, sizeof folder, "%s", files_shipped(""));
    DIR *entries = opendir(folder);
    ck_assert_ptr_nonnull(entries);
    for (struct dirent *entry; (entry = readdir(entries));) {
        const char *ending = strrchr(entry->d_name, '.');
        if (!ending || strcmp(ending, ".json") != 0) continue;
        for (int bare = 0; bare < 2; bare++) {
            struct scenario_options options = {.no_faults = bare};
            struct error error = {0};
            struct scenario *s = scenario_load(files_shipped(entry->d_name), &options, &error);
            if (!s) files_report(entry->d_name, &error);
            ck_assert_int_eq(s->expect.given, !bare);
            ck_assert(!bare || s->faults_count == 0);
            scenario_free(s);
        }
        count++;
    }
    closedir(entries);
    ck_assert_int_ge(count, 20);
}
END_TEST

/* ---- defaults and computed values ---- */

START_TEST(defaults)
{
    struct scenario *s = files_accept("{" P "}", NULL);
    const struct run_config *c = &s->config;
    const struct model_config *m = &c->model;
    ck_assert_str_eq(s->name, "s");
    ck_assert_uint_eq(c->seed, 1);
    ck_assert(m->layers == 8 && m->dim == 64 && m->heads == 4 && m->kv_heads == 4 && m->head_dim == 16 && m->ffn == 176);
    ck_assert(m->vocab == 256 && m->seq == 64 && m->causal && m->rope && !m->bias && !m->tie_embeddings && !m->document_mask);
    ck_assert(m->norm_eps == 1e-5 && m->rope_base == 10000 && !m->weights[0] && c->data.packing == PACKING_DOCUMENTS);
    const struct train_config *t = &c->train;
    ck_assert(t->steps == 4 && t->global_batch == 16 && t->optimizer == OPTIMIZER_ADAMW && t->lr == 0.001 && t->beta1 == 0.9);
    ck_assert(t->beta2 == 0.95 && t->eps == 1e-8 && t->weight_decay == 0.1 && t->momentum == 0 && t->grad_clip == 1);
    const struct layout *l = &c->layout;
    ck_assert(l->pp == 1 && l->dp_replicate == 1 && l->dp_shard == 1 && l->microbatches == 1 && !l->send_sync);
    ck_assert(!strcmp(l->schedule, "1F1B") && l->layers_per_stage[0] == 8 && l->zero == 3 && l->reshard_after_forward);
    ck_assert(l->reduce_op == FSDP_REDUCE_AVG && l->sync == SYNC_LAST_MICROBATCH && !l->all_reduce[0] && !l->all_gather[0]);
    ck_assert(c->machine.ranks_per_node == 8 && c->machine.tflops == 400 && c->machine.intra_latency_us == 3 &&
              c->machine.intra_gb_per_s == 400 && c->machine.inter_latency_us == 8 && c->machine.inter_gb_per_s == 50);
    ck_assert(precision_is(&c->precision, FORMAT_FP32) && s->faults_count == 0 && !s->expect.given && s->expect.verdict == VERDICT_CONSISTENT);
    scenario_free(s);
}
END_TEST

/* Defaults that follow from other keys: heads, stages, micro-batches, sharding. */
START_TEST(computed)
{
    const struct { const char *text; int microbatches, zero, reshard, first_stage; } cases[] = {
        {"{\"parallel\":{\"pp\":4,\"dp_shard\":2}}", 8, 3, 1, 2},
        {"{\"parallel\":{\"pp\":4,\"dp_shard\":2},\"train\":{\"global_batch\":10}}", 5, 3, 1, 2},
        {"{\"parallel\":{\"pp\":8},\"train\":{\"global_batch\":7}}", 7, 3, 1, 1},
        {"{\"parallel\":{\"pp\":2,\"dp_shard\":5},\"train\":{\"global_batch\":35}}", 1, 3, 1, 4},
        {"{\"parallel\":{\"dp_replicate\":4}}", 1, 0, 0, 8},
        {"{\"parallel\":{\"dp_replicate\":2,\"dp_shard\":2,\"fsdp\":{\"zero\":0}}}", 1, 0, 0, 8},
        {"{\"parallel\":{\"dp_shard\":2,\"fsdp\":{\"reshard_after_forward\":false}}}", 1, 3, 0, 8},
        {"{\"parallel\":{\"pp\":3,\"pipeline\":{\"layers_per_stage\":[1,2,5]}},\"train\":{\"global_batch\":9}}", 3, 3, 1, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct scenario *s = files_accept(cases[i].text, NULL);
        const struct layout *l = &s->config.layout;
        int sum = 0;
        for (int stage = 0; stage < l->pp; stage++) sum += l->layers_per_stage[stage];
        ck_assert_msg(l->microbatches == cases[i].microbatches && l->zero == cases[i].zero && sum == 8 &&
                      l->reshard_after_forward == cases[i].reshard && l->layers_per_stage[0] == cases[i].first_stage, "%s", cases[i].text);
        scenario_free(s);
    }
    struct scenario *s = files_accept("{" P ",\"model\":{\"heads\":6,\"kv_heads\":2,\"dim\":30,\"rope\":false},\"train\":{\"grad_clip\":null,"
                                      "\"optimizer\":{\"kind\":\"sgd\",\"momentum\":0.5,\"betas\":[0.1,0.2]}}}", NULL);
    ck_assert(s->config.model.head_dim == 5 && s->config.model.kv_heads == 2 && s->config.train.grad_clip == 0);
    ck_assert(s->config.train.optimizer == OPTIMIZER_SGD && s->config.train.momentum == 0.5 && s->config.train.beta2 == 0.2);
    scenario_free(s);
    s = files_accept("{" P ",\"precision\":{\"param\":\"fp64\",\"compute\":\"fp64\",\"reduce\":\"fp64\",\"accumulate\":\"fp64\","
                     "\"softmax\":\"fp64\",\"logits\":\"fp64\",\"residual\":\"fp64\"}}", NULL);
    ck_assert(precision_is(&s->config.precision, FORMAT_FP64));
    scenario_free(s);
}
END_TEST

/* A decimal comma in the process' locale changes no number. */
START_TEST(locale)
{
    static const char *const names[] = {"de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8", "de_DE"};
    for (int i = 0; i < 4 && !setlocale(LC_ALL, names[i]); i++) {}
    struct scenario *s = files_accept("{" P ",\"train\":{\"optimizer\":{\"lr\":0.125,\"eps\":2.5e-3}}}", NULL);
    char *schema = scenario_schema();
    bool comma = strstr(schema, "0,001") != NULL;
    setlocale(LC_ALL, "C");
    ck_assert(s->config.train.lr == 0.125 && s->config.train.eps == 2.5e-3 && !comma);
    free(schema);
    scenario_free(s);
}
END_TEST

/* ---- --set ---- */

static struct scenario *accept_set(const char *text, const char *path, const char *value)
{
    struct override override = {path, value};
    return files_accept(text, &(struct scenario_options){.overrides_count = 1, .overrides = &override});
}

static struct error refuse_set(const char *path, const char *value, const char *blamed, const char *words)
{
    struct override override = {path, value};
    struct scenario_options options = {.overrides_count = 1, .overrides = &override};
    return files_refuse("{\"parallel\":{\"pp\":2},\"model\":{\"layers\":4},\"faults\":[{\"fault\":\"loss-not-divided\"}],\"precision\":\"fp32\"}",
                        &options, blamed, words);
}

/* --set reaches any key, makes what is missing on the way, indexes lists; JSON where it is JSON, else a string. */
START_TEST(overrides)
{
    const char *base = "{\"parallel\":{\"pp\":2},\"model\":{\"layers\":4},\"faults\":[{\"fault\":\"loss-not-divided\"}]}";
    struct scenario *s = accept_set(base, "parallel.pp", "4");
    ck_assert(s->config.layout.pp == 4 && s->config.layout.layers_per_stage[3] == 1);
    scenario_free(s);
    s = accept_set(base, "parallel.pipeline.layers_per_stage", "[3, 1]");
    ck_assert(s->config.layout.layers_per_stage[0] == 3 && s->config.layout.layers_per_stage[1] == 1);
    scenario_free(s);
    s = accept_set(base, "precision", "fp64");
    ck_assert(precision_is(&s->config.precision, FORMAT_FP64));
    scenario_free(s);
    s = accept_set(base, "precision", "{\"param\": \"fp32\"}");
    ck_assert(precision_is(&s->config.precision, FORMAT_FP32));
    scenario_free(s);
    s = accept_set(base, "name", "a b, c=d");
    ck_assert_str_eq(s->name, "a b, c=d");
    scenario_free(s);
    s = accept_set(base, "faults.0.at.step", "[1,3]");
    ck_assert(s->faults[0].step.count == 2 && s->faults[0].step.values[1] == 3);
    scenario_free(s);
    s = accept_set(base, "faults[0].fault", "pp-grad-cleared");
    ck_assert_str_eq(s->faults[0].name, "pp-grad-cleared");
    scenario_free(s);
    s = accept_set(base, "faults.1.fault", "pp-grad-cleared");
    ck_assert(s->faults_count == 2 && !strcmp(s->faults[1].name, "pp-grad-cleared"));
    scenario_free(s);
    s = accept_set(base, "expect.ranks.0", "5");
    ck_assert(s->expect.given && s->expect.ranks_count == 1 && s->expect.ranks[0] == 5);
    scenario_free(s);

    const struct override several[] = {{"model.layers", "6"}, {"parallel.pp", "3"}, {"parallel.pp", "6"}, {"train.grad_clip", "null"}};
    s = files_accept(base, &(struct scenario_options){.overrides_count = 4, .overrides = several, .seed_given = true, .seed = UINT64_MAX});
    ck_assert(s->config.layout.pp == 6 && s->config.model.layers == 6 && s->config.train.grad_clip == 0 && s->config.seed == UINT64_MAX);
    scenario_free(s);
}
END_TEST

/* An error that a --set brought in names it, not a line of the file; one that it did not names the file. */
START_TEST(override_errors)
{
    const struct { const char *path, *value, *blamed, *words; } cases[] = {
        {"parallel.pp", "3", "parallel.pp", "layers 4 do not split into pp 3 x chunks 1; allowed pp: 1, 2, 4"},
        {"parallel.pp", "02", "parallel.pp", "'02' found"},
        {"parallel.pp", "", "parallel.pp", "'' found"},
        {"parallel.pp", "1e999", "parallel.pp", "'1e999' found"},
        {"parallel.ppp", "4", "parallel.ppp", "did you mean 'pp'?"},
        {"parallel.pp.x", "4", "parallel.pp", "2 has no key 'x'"},
        {"parallel", "{\"pp\": 2, \"pp\": 3}", "parallel", "found"},
        {"parallel", "{\"pp\": 2, \"dp\": 3}", "parallel.dp", "unknown key 'dp'"},
        {"model.layers", "3", "model.layers", "layers 3 do not split into pp 2"},
        {"precision", "fp31", "precision", "'fp31' found"},
        {"precision.param", "fp8_e4m3", "precision.param", "'fp8_e4m3' found"},
        {"faults.7.fault", "x", "faults", "'7' is no index of this list of 1; allowed: 0 to 1"},
        {"faults.x", "1", "faults", "'x' is no index"},
        {"faults.0.fault", "loss-not-dived", "faults[0].fault", "did you mean 'loss-not-divided'?"},
        {"train.optimizer.betas.1", "0.5", "train.optimizer.betas", "'1' is no index of this list of 0"},
        {"parallel..pp", "2", "", "is not a path such as"},
        {"", "2", "", "is not a path such as"},
        {"faults[0.at", "2", "", "is not a path such as"},
        {"faults[x]", "2", "", "is not a path such as"},
        {"a\nb", "2", "", "is not a path such as"},
        {"name", "\xff", "name", "not UTF-8"},
        {"name", "a\x1b[2J", "name", "control characters"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct error error = refuse_set(cases[i].path, cases[i].value, cases[i].blamed, cases[i].words);
        ck_assert_msg(!strncmp(error.file, "--set ", 6) && error.line == 0, "%s: %s:%d", cases[i].path, error.file, error.line);
    }
    ck_assert_str_eq(refuse_set("parallel.pp", "3", NULL, "layers").file, "--set parallel.pp=3");
    struct override harmless = {"parallel.pp", "2"};
    struct error error = files_refuse("{\"parallel\":{},\n\"model\":{\"dim\":0}}",
                                      &(struct scenario_options){.overrides_count = 1, .overrides = &harmless}, "model.dim", "0 found");
    ck_assert(error.line == 2 && !strcmp(error.file, files_path("s.json")));
}
END_TEST

/* What a file expects belongs to its own faults: --fault and --no-faults drop it, --set brings another. */
START_TEST(expectation)
{
    const char *text = "{" P ",\"faults\":[{\"fault\":\"loss-not-divided\"}],\"expect\":{\"verdict\":\"diverged\",\"component\":\"pp.loss\","
                       "\"ranks\":[3,1],\"checks\":[\"oracle\",\"token-weight\"]}}";
    const char *fault = "pp-grad-cleared";
    const struct override set[] = {{"expect.verdict", "violated"}};
    struct scenario *s = files_accept(text, NULL);
    ck_assert(s->expect.given && s->expect.verdict == VERDICT_DIVERGED && !strcmp(s->expect.component, "pp.loss"));
    ck_assert(s->expect.ranks_count == 2 && s->expect.ranks[0] == 3 && s->expect.checks_count == 2);
    ck_assert_str_eq(s->expect.checks[1], "token-weight");
    scenario_free(s);
    s = files_accept(text, &(struct scenario_options){.no_faults = true});
    ck_assert(!s->expect.given && s->expect.verdict == VERDICT_CONSISTENT && s->expect.ranks_count == 0 && s->faults_count == 0);
    scenario_free(s);
    s = files_accept(text, &(struct scenario_options){.faults_count = 1, .faults = &fault});
    ck_assert(!s->expect.given && s->faults_count == 2);
    scenario_free(s);
    s = files_accept(text, &(struct scenario_options){.faults_count = 1, .faults = &fault, .overrides_count = 1, .overrides = set});
    ck_assert(s->expect.given && s->expect.verdict == VERDICT_VIOLATED && !s->expect.component[0]);
    scenario_free(s);
    s = files_accept(text, &(struct scenario_options){.overrides_count = 1, .overrides = set});
    ck_assert(s->expect.verdict == VERDICT_VIOLATED && !strcmp(s->expect.component, "pp.loss"));
    scenario_free(s);
}
END_TEST

/* What is said of overlap, chunks and garbage changes no bit of a run; micro_batch_size is another word for microbatches. */
START_TEST(no_effect_on_values)
{
#define SMALL "\"model\":{\"layers\":2,\"dim\":12,\"heads\":2,\"ffn\":14,\"seq\":18},\"train\":{\"steps\":2,\"global_batch\":18"
    static const char *const same[] = {
        "{" SMALL "},\"parallel\":{\"pp\":2,\"dp_shard\":3,\"pipeline\":{\"microbatches\":2}}}",
        "{" SMALL "},\"parallel\":{\"pp\":2,\"dp_shard\":3,\"pipeline\":{\"micro_batch_size\":3}}}",
        "{" SMALL ",\"gc_interval_steps\":1,\"sequence_chunks\":6},\"parallel\":{\"pp\":2,\"dp_shard\":3,\"pipeline\":{\"microbatches\":2}}}",
        "{" SMALL "},\"parallel\":{\"pp\":2,\"dp_shard\":3,\"pipeline\":{\"microbatches\":2},"
        "\"overlap\":{\"tp\":\"mc2\",\"forward_backward\":true,\"all_to_all\":true}}}",
        "{" SMALL "},\"parallel\":{\"pp\":2,\"dp_shard\":3,\"pipeline\":{\"micro_batch_size\":1}}}", /* other micro-batches: other bits */
    };
    enum { TEXTS = sizeof same / sizeof same[0] };
    uint64_t digest[TEXTS][2];
    for (int i = 0; i < TEXTS; i++) {
        struct scenario *scenario = files_accept(same[i], NULL);
        struct train_options options = {.threads = 1};
        struct error error = {0};
        struct record *record = train_run(&scenario->config, NULL, &options, &error);
        ck_assert_msg(record != NULL, "%s", error.message);
        ck_assert_int_eq(scenario->config.layout.microbatches, i == TEXTS - 1 ? 6 : 2);
        memcpy(digest[i], record->digest, sizeof digest[i]);
        record_free(record);
        scenario_free(scenario);
    }
    for (int i = 1; i < TEXTS; i++) ck_assert_int_eq(!memcmp(digest[i], digest[0], sizeof digest[0]), i < TEXTS - 1);
}
END_TEST

int main(int argc, char **argv)
{
    if (argc > 1) files_source = argv[1];
    Suite *suite = suite_create("scenario");
    TCase *tcase = tcase_create("load");
    tcase_add_checked_fixture(tcase, files_setup, files_teardown);
    tcase_set_timeout(tcase, 120);
    tcase_add_loop_test(tcase, refuses, 0, (int)(sizeof refusals / sizeof refusals[0]));
    tcase_add_test(tcase, files);
    tcase_add_test(tcase, texts);
    tcase_add_test(tcase, built_in_text);
    tcase_add_test(tcase, shipped_scenarios);
    tcase_add_test(tcase, defaults);
    tcase_add_test(tcase, computed);
    tcase_add_test(tcase, locale);
    tcase_add_test(tcase, overrides);
    tcase_add_test(tcase, override_errors);
    tcase_add_test(tcase, expectation);
    tcase_add_test(tcase, no_effect_on_values);
    suite_add_tcase(suite, tcase);
    return run_suite(suite, CK_NOFORK);
}
