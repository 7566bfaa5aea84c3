#!/usr/bin/env python3
"""Golden numbers for tests/test_goldens.c: the same model, data and optimizer in PyTorch.

Needs python3-torch (Debian). Writes into a folder, for each case: <case>.weights.safetensors (initial
values, fp32) and <case>.txt: one line a number group,
    loss STEP VALUE | norm STEP VALUE
    grad|param STEP NAME FROBENIUS COUNT (INDEX VALUE)...
The raw gradient is taken before clipping, the parameter after the update. Everything runs in float64 on
one thread; the packing of the text is written again here, independently of the C code.

    python3 tools/goldens/make_goldens.py scenarios/corpus.txt tests/goldens
"""
import json
import math
import os
import struct
import sys

import torch

CASES = {
    # layers, dim, heads, kv_heads, head_dim, ffn, seq, flags, optimizer
    "mha_adamw": dict(layers=3, dim=20, heads=5, kv_heads=5, head_dim=4, ffn=28, seq=19, rope=True, causal=True,
                      bias=False, tied=False, batch=6, document_mask=False,
                      optimizer=dict(kind="adamw", lr=2e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1), clip=1.0),
    "gqa_bias_tied_sgd": dict(layers=2, dim=18, heads=6, kv_heads=2, head_dim=6, ffn=22, seq=23, rope=True, causal=True,
                              bias=True, tied=True, batch=6, document_mask=True,
                              optimizer=dict(kind="sgd", lr=0.05, momentum=0.9, weight_decay=0.01), clip=0.0),
    "bidirectional_adamw": dict(layers=2, dim=14, heads=7, kv_heads=1, head_dim=2, ffn=26, seq=17, rope=False,
                                causal=False, bias=False, tied=False, batch=6, document_mask=False,
                                optimizer=dict(kind="adamw", lr=1e-3, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.0), clip=0.7),
    # sizes that split for two tensor-parallel ranks, the sequence too
    "slices_adamw": dict(layers=2, dim=22, heads=6, kv_heads=2, head_dim=4, ffn=26, seq=18, rope=True, causal=True,
                              bias=True, tied=False, batch=6, document_mask=False,
                              optimizer=dict(kind="adamw", lr=2e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1), clip=1.0),
}
STEPS, VOCAB, SAMPLES = 10, 256, 6


def pack(text, seq, count):
    """Documents are paragraphs; see model/data.c for the rule."""
    n, at, document = len(text), 0, -1
    last = lambda i: i + 1 >= n or text[i:i + 2] == b"\n\n"
    tokens, targets, documents = [], [], []
    inside = False
    for _ in range(count):
        row = ([], [], [])
        while len(row[0]) < seq:
            if not inside:
                while text[at:at + 1] == b"\n":
                    at = (at + 1) % n
                left = seq - len(row[0])
                whole = any(last(at + i) for i in range(left))
                if row[0] and left <= seq // 2 and not whole:
                    row[0].extend([0] * left)
                    row[1].extend([-100] * left)
                    row[2].extend([-1] * left)
                    break
                document += 1
                inside = True
            ends = last(at)
            row[0].append(text[at])
            row[1].append(-100 if ends else text[at + 1])
            row[2].append(document)
            at = (at + 1) % n
            inside = not ends
        tokens.append(row[0]); targets.append(row[1]); documents.append(row[2])
    return torch.tensor(tokens), torch.tensor(targets), torch.tensor(documents)


def initial(case, generator):
    c, d = case, {}
    def normal(name, *shape):
        d[name] = (torch.randn(*shape, generator=generator, dtype=torch.float64) * 0.08).float().double()
    def near_one(name, *shape):
        d[name] = (1 + torch.randn(*shape, generator=generator, dtype=torch.float64) * 0.1).float().double()
    q, kv = c["heads"] * c["head_dim"], c["kv_heads"] * c["head_dim"]
    normal("tok_embeddings.weight", VOCAB, c["dim"])
    for i in range(c["layers"]):
        p = f"layers.{i}."
        near_one(p + "attention_norm.weight", c["dim"])
        near_one(p + "ffn_norm.weight", c["dim"])
        for name, out, inn in (("attention.wq", q, c["dim"]), ("attention.wk", kv, c["dim"]), ("attention.wv", kv, c["dim"]),
                               ("attention.wo", c["dim"], q), ("feed_forward.w1", c["ffn"], c["dim"]),
                               ("feed_forward.w2", c["dim"], c["ffn"]), ("feed_forward.w3", c["ffn"], c["dim"])):
            normal(p + name + ".weight", out, inn)
            if c["bias"]:
                normal(p + name + ".bias", out)
    near_one("norm.weight", c["dim"])
    if not c["tied"]:
        normal("output.weight", VOCAB, c["dim"])
    return d


def rms_norm(x, w):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * w


def rotate(x):
    """x [batch, seq, heads, head_dim]; pairs (i, i + head_dim/2)."""
    half = x.shape[-1] // 2
    frequency = 10000.0 ** (-torch.arange(half, dtype=x.dtype) * 2 / x.shape[-1])
    angle = torch.arange(x.shape[1], dtype=x.dtype)[:, None] * frequency
    cos, sin = angle.cos()[None, :, None], angle.sin()[None, :, None]
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def forward(c, w, tokens, documents):
    linear = lambda x, n: torch.nn.functional.linear(x, w[n + ".weight"], w.get(n + ".bias"))
    b, s = tokens.shape
    x = w["tok_embeddings.weight"][tokens]
    allowed = torch.ones(s, s, dtype=torch.bool)
    if c["causal"]:
        allowed = allowed.tril()
    allowed = allowed[None].expand(b, s, s)
    if c["document_mask"]:
        allowed = allowed & (documents[:, :, None] == documents[:, None, :])
    for i in range(c["layers"]):
        p = f"layers.{i}."
        h = rms_norm(x, w[p + "attention_norm.weight"])
        q = linear(h, p + "attention.wq").view(b, s, c["heads"], c["head_dim"])
        k = linear(h, p + "attention.wk").view(b, s, c["kv_heads"], c["head_dim"])
        v = linear(h, p + "attention.wv").view(b, s, c["kv_heads"], c["head_dim"])
        if c["rope"]:
            q, k = rotate(q), rotate(k)
        group = c["heads"] // c["kv_heads"]
        k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
        score = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(c["head_dim"])
        score = score.masked_fill(~allowed[:, None], float("-inf"))
        o = torch.einsum("bhqk,bkhd->bqhd", score.softmax(-1), v).reshape(b, s, -1)
        x = x + linear(o, p + "attention.wo")
        h = rms_norm(x, w[p + "ffn_norm.weight"])
        gate = torch.nn.functional.silu(linear(h, p + "feed_forward.w1")) * linear(h, p + "feed_forward.w3")
        x = x + linear(gate, p + "feed_forward.w2")
    x = rms_norm(x, w["norm.weight"])
    return x @ w["tok_embeddings.weight" if c["tied"] else "output.weight"].T


def write_safetensors(path, tensors):
    header, at, body = {}, 0, b""
    for name, t in tensors.items():
        data = struct.pack("<%df" % t.numel(), *t.flatten().tolist())
        header[name] = {"dtype": "F32", "shape": list(t.shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
        body += data
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + body)


def describe(kind, step, name, t, lines, samples=SAMPLES, digits=17):
    flat = t.detach().flatten()
    stride = max(1, flat.numel() // samples)
    picked = list(range(0, flat.numel(), stride))[:samples]
    values = " ".join("%d %.*g" % (i, digits, flat[i].item()) for i in picked)
    lines.append("%s %d %s %.*g %d %s" % (kind, step, name, digits, flat.norm().item(), len(picked), values))


def describe_all(kind, step, tensors, lines):
    for n, t in tensors.items():
        describe(kind, step, n, t, lines)


def train(case, params, logits_of, text, steps=STEPS, describe_all=describe_all):
    """The lines of a golden file. logits_of(tokens, documents) computes with params, {name: tensor}."""
    o = dict(case["optimizer"])
    kind = o.pop("kind")
    optimizer = (torch.optim.AdamW if kind == "adamw" else torch.optim.SGD)(list(params.values()), **o)
    tokens, targets, documents = pack(text, case["seq"], steps * case["batch"])
    lines = []
    for step in range(steps):
        rows = slice(step * case["batch"], (step + 1) * case["batch"])
        logits = logits_of(tokens[rows], documents[rows])
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, VOCAB), targets[rows].reshape(-1), ignore_index=-100)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = math.sqrt(sum(p.grad.pow(2).sum().item() for p in params.values()))
        lines.append("loss %d %.17g" % (step, loss.item()))
        lines.append("norm %d %.17g" % (step, norm))
        describe_all("grad", step, {n: p.grad for n, p in params.items()}, lines)
        if case["clip"]:
            torch.nn.utils.clip_grad_norm_(list(params.values()), case["clip"])
        optimizer.step()
        describe_all("param", step, params, lines)
    return lines


def write_lines(folder, name, lines):
    with open(os.path.join(folder, name + ".txt"), "w") as f:
        f.write("\n".join(lines) + "\n")


def run(name, case, text, folder):
    weights = initial(case, torch.Generator().manual_seed(len(name)))
    write_safetensors(os.path.join(folder, name + ".weights.safetensors"), weights)
    params = {n: t.clone().requires_grad_() for n, t in weights.items()}
    write_lines(folder, name, train(case, params, lambda tokens, documents: forward(case, params, tokens, documents), text))


def main():
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    with open(sys.argv[1], "rb") as f:
        text = f.read()
    for name, case in CASES.items():
        run(name, case, text, sys.argv[2])


if __name__ == "__main__":
    main()
