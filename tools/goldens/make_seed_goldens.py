#!/usr/bin/env python3
"""Golden numbers of latent attention and experts for tests/test_goldens.c, from the model of the report on
which the architecture pangu_moe rests (gitcode.com/mindspore/hyper-parallel, issue 193), run in PyTorch.

The report's text holds parallel_config.py and moe_transformer_parallel_demo.py. Both are cut out of it by the
lines with their names and executed; nothing of them is kept here. Its attention output, [batch, seq, width], is
viewed as [seq, batch, width]; where a case says corrected, that one expression is replaced.

Sizes, data, packing and format are as in make_goldens.py, but fewer samples of a tensor; and
    param 3 NAME[30:60] ...     the tensor's elements from 30 on, before 60; indices count from 30
    zero STEP NAME[0:30]        a gradient that is 0 in exact arithmetic: a key bias' (it adds the same to all
                                scores of a query), whose updates are noise and are left out
All cases begin with the same weights. It is asserted that no choice of experts is a near tie and that no expert
is idle: PyTorch's optimizer passes over a parameter without a gradient.

pangu_moe_leaks.txt: a line a shape of the batch, of two layers as in the report's demonstration,
    BATCH SEQ POSITION CHANGED EARLIER
with another token at POSITION of the first sequence, CHANGED of the EARLIER positions of all sequences have
other logits, none of which may.

    python3 tools/goldens/make_seed_goldens.py REPORT.txt scenarios/corpus.txt tests/goldens
"""
import os
import sys
import types

import torch

import make_goldens as goldens

SIZES = dict(vocab_size=goldens.VOCAB, hidden_size=20, num_layers=3, seq_len=19, num_heads=5, q_lora_rank=7,
             kv_lora_rank=9, qk_rope_head_dim=6, ffn_hidden=28, parallel=None)
EXPERTS = dict(num_experts=7, top_k=3, expert_hidden_size=11, shared_hidden_size=13, sigmoid_gating=True,
               routed_scaling=2.5, layers_replaced_as_dense=[0])
CASES = {
    "pangu_moe": dict(corrected=True, batch=6, steps=10, seq=19, clip=1.0,
                      optimizer=dict(kind="adamw", lr=2e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)),
    # One sequence at a time: the view is right.
    "pangu_moe_as_shipped": dict(corrected=False, batch=1, steps=10, seq=19, clip=0.0,
                                 optimizer=dict(kind="sgd", lr=0.05, momentum=0.9, weight_decay=0.01)),
    # Several: the view mixes them.
    "pangu_moe_view": dict(corrected=False, batch=4, steps=3, seq=19, clip=0.7,
                           optimizer=dict(kind="sgd", lr=0.07, momentum=0.8, weight_decay=0.0)),
}
SEED, SAMPLES, DIGITS, MARGIN = 20, 3, 14, 1e-5
LEAKS = [(1, 32, 20), (2, 32, 20), (4, 32, 20), (3, 41, 27)]
SHIPPED, CORRECTED = "out.transpose(1, 2).contiguous().view(", "out.permute(2, 0, 1, 3).contiguous().view("
NETWORK = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}


def modules(report, corrected):
    """The report's two modules, executed."""
    names = ["parallel_config.py", "moe_transformer_parallel_demo.py", "test_pp.py"]
    lines = report.split("\n")
    starts = [lines.index(name) for name in names]
    assert starts == sorted(starts) and all(lines.count(name) == 1 for name in names)
    made = []
    for name, start, end in zip(names, starts, starts[1:]):
        source = "\n".join(lines[start + 1:end])
        if corrected and made:
            assert source.count(SHIPPED) == 1
            source = source.replace(SHIPPED, CORRECTED)
        module = types.ModuleType(name[:-len(".py")])
        sys.modules[module.__name__] = module
        exec(compile(source, name, "exec"), module.__dict__)
        made.append(module)
    return made


def our_name(name):
    whole = {"embedding.weight": "tok_embeddings.weight", "final_norm.weight": "norm.weight", "lm_head.weight": "output.weight"}
    if name in whole:
        return whole[name]
    parts = name.split(".")
    if parts[2] in ("norm1", "norm2"):
        parts[2] = {"norm1": "attention_norm", "norm2": "ffn_norm"}[parts[2]]
    elif parts[2] == "moe" and parts[3] in NETWORK:
        parts[2:4] = ["feed_forward", NETWORK[parts[3]]]
    elif parts[2] == "moe" and parts[3] == "gate":
        parts[3:5] = ["router"]
    elif parts[2] == "moe":
        parts[3] = {"local_experts": "experts", "shared_expert": "shared_expert"}[parts[3]]
        parts[-2] = NETWORK[parts[-2]]
    return ".".join(parts)


def draw(shapes, generator):
    """Embeddings differ much, so that tokens go to different experts."""
    weights = {}
    for name, shape in shapes.items():
        mean, size = (1, 0.1) if name.endswith("norm.weight") else (0, 0.06 if len(shape) == 1 else 0.15)
        size = 0.7 if name.startswith("tok_embeddings") else size
        drawn = torch.randn(*shape, generator=generator, dtype=torch.float64)
        weights[name] = (mean + size * drawn).float().double()
    return weights


def watch_router(gate, top_k, margins):
    def hook(module, inputs, output):
        scores, order = torch.sigmoid(output.detach()).sort(-1, descending=True)
        margins.append((scores[:, top_k - 1] - scores[:, top_k]).min().item())
        assert order[:, :top_k].unique().numel() == output.shape[-1], "an idle expert"
    gate.register_forward_hook(hook)


def describe_all(kind, step, tensors, lines):
    for name, t in tensors.items():
        if not name.endswith("attention.kv_lora_up.bias"):
            goldens.describe(kind, step, name, t, lines, SAMPLES, DIGITS)
            continue
        keys, end = t.numel() // 2, t.numel()
        if kind == "grad":
            assert t[:keys].norm() < 1e-12 * tensors[name[:-len("bias")] + "weight"].norm()
            lines.append("zero %d %s[0:%d]" % (step, name, keys))
        goldens.describe(kind, step, "%s[%d:%d]" % (name, keys, end), t[keys:], lines, SAMPLES, DIGITS)


def make_model(report, corrected, sizes):
    demo = modules(report, corrected)[1]
    config = demo.ModelConfig()
    config.moe = demo.MoEConfig()
    for target, values in ((config, sizes), (config.moe, EXPERTS)):
        for key, value in values.items():
            assert hasattr(target, key)
            setattr(target, key, value)
    return demo, demo.PanGuMoETransformer(config)


def run(name, case, report, text, folder):
    demo, model = make_model(report, case["corrected"], SIZES)
    params = {our_name(n): p for n, p in model.named_parameters()}
    weights = draw({n: p.shape for n, p in params.items()}, torch.Generator().manual_seed(SEED))
    with torch.no_grad():
        for n, p in params.items():
            p.copy_(weights[n])
    margins = []
    for module in model.modules():
        if isinstance(module, demo.MoEGating):
            watch_router(module.gate, EXPERTS["top_k"], margins)
    lines = goldens.train(case, params, lambda tokens, documents: model(tokens), text, case["steps"], describe_all)
    print("%s: smallest margin between a chosen expert and the next %.3g" % (name, min(margins)))
    assert min(margins) > MARGIN
    goldens.write_lines(folder, name, lines)
    return weights


def count_leaks(report, corrected, batch, seq, position):
    torch.manual_seed(SEED)
    model = make_model(report, corrected, dict(SIZES, num_layers=2, seq_len=seq))[1]
    tokens = torch.randint(0, goldens.VOCAB, (batch, seq))
    edited = tokens.clone()
    edited[0, position] = (edited[0, position] + 1) % goldens.VOCAB
    with torch.no_grad():
        by = (model(tokens) - model(edited)).abs().amax(-1)[:, :position]
    return (by > 1e-9).sum().item()  # less is the rounding of products of other sizes


def run_leaks(report, folder):
    lines = []
    for batch, seq, position in LEAKS:
        assert count_leaks(report, True, batch, seq, position) == 0
        lines.append("%d %d %d %d %d" % (batch, seq, position, count_leaks(report, False, batch, seq, position), batch * position))
    goldens.write_lines(folder, "pangu_moe_leaks", lines)


def main():
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    with open(sys.argv[1], encoding="utf-8") as f:
        report = f.read()
    with open(sys.argv[2], "rb") as f:
        text = f.read()
    for name, case in CASES.items():
        weights = run(name, case, report, text, sys.argv[3])
    run_leaks(report, sys.argv[3])
    goldens.write_safetensors(os.path.join(sys.argv[3], "pangu_moe.weights.safetensors"), weights)


if __name__ == "__main__":
    main()
