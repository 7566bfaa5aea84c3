#!/usr/bin/env python3
"""Golden numbers of the report's program (make_seed_goldens.py) as a true program of several ranks, in each of the
states that its tensor and expert parallelism can be left in, for tests/test_seed_states.c.

The report's module makes each rank's model: tensor rank = rank % 2, expert rank = rank / 2. Its attention splits heads
over tensor ranks and everything else is whole; its experts are split over expert ranks, and all ranks hold the same
tokens. Neither the partial outputs of attention nor those of the experts are summed by it. Here the eight models run
side by side, a block at a time, and what a state says is summed is summed between blocks:

    shipped       nothing is summed
    tensor_sum    attention's outputs over tensor ranks, with the bias once
    expert_sum    the experts' outputs over expert ranks, with the shared expert once
    naive_sums    both, with the bias twice and the shared expert four times
    bias_twice    both, with the bias twice
    keys_values   both, right; but each tensor rank has a run of kv_lora_up's rows, which are all keys and then all
                  values, instead of its keys and its values
    right         both, right

The attention output's view is the corrected one. Weights are those of `hpsim run SCENARIO --dump`, by their names;
tokens those of make_goldens.pack. Written, a line each:
    sizes NAME=VALUE ...
    whole LOSS
    STATE RANK LOSS ERROR HIDDEN_NORM INDEX VALUE ...
    router RANK ERROR
LOSS: the mean over targets; ERROR: |logits - logits of one rank| / |logits of one rank|; then what comes out of the last
layer: its norm and elements of it, [batch, seq, dim]. router: the same of the gradient of the last layer's router where
it is not summed over expert ranks, with both sums right in the forward.

    hpsim run scenarios/seed1_demo.json --set train.optimizer.lr=0 --dump weights.safetensors
    python3 tools/goldens/make_seed_states.py REPORT.txt weights.safetensors scenarios/corpus.txt tests/goldens/pangu_states.txt
"""
import json
import struct
import sys

import torch

import make_goldens as goldens
import make_seed_goldens as seed

TENSOR, EXPERT, BATCH, SEQ, SAMPLES = 2, 4, 2, 32, 64
RANKS = TENSOR * EXPERT
# attention summed, its bias once, experts summed, the shared one once, keys and values split as one run of rows
STATES = {
    "shipped": (False, True, False, True, False),
    "tensor_sum": (True, True, False, True, False),
    "expert_sum": (False, True, True, True, False),
    "naive_sums": (True, False, True, False, False),
    "bias_twice": (True, False, True, True, False),
    "keys_values": (True, True, True, True, True),
    "right": (True, True, True, True, False),
}


def read_safetensors(path):
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        body = f.read()
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        if not name.startswith("grad."):
            begin, end = entry["data_offsets"]
            tensors[name] = torch.frombuffer(bytearray(body[begin:end]), dtype=torch.float32).reshape(entry["shape"])
    return tensors


def sizes_of(weights):
    """The report's sizes, read off the weights; heads are 8 wide unless the report's own 64 divide."""
    rows = lambda name: weights[name].shape[0]
    moe = "layers.1.moe."
    experts = 1 + max(int(n.split(".")[4]) for n in weights if n.startswith(moe + "experts."))
    heads_width = rows("layers.0.attention.q_lora_up.weight")
    head_dim = 64 if heads_width % 64 == 0 else 8
    vocab, hidden = weights["tok_embeddings.weight"].shape
    model = dict(vocab_size=vocab, hidden_size=hidden, num_layers=2, seq_len=SEQ, num_heads=heads_width // head_dim,
                 q_lora_rank=rows("layers.0.attention.q_lora_down.weight"), kv_lora_rank=rows("layers.0.attention.kv_lora_down.weight"),
                 qk_rope_head_dim=head_dim, ffn_hidden=rows("layers.0.feed_forward.w1.weight"))
    moe = dict(num_experts=experts, top_k=4, expert_hidden_size=rows(moe + "experts.0.w1.weight"),
               shared_hidden_size=rows(moe + "shared_expert.w1.weight"))
    return model, moe


def make(demo, sizes, parallel, rank):
    config = demo.ModelConfig()
    config.moe = demo.MoEConfig()
    for target, values in ((config, sizes[0]), (config.moe, sizes[1])):
        for key, value in values.items():
            assert hasattr(target, key)
            setattr(target, key, value)
    config.parallel = parallel
    demo.get_rank = lambda: rank
    return demo.PanGuMoETransformer(config)


def part(name, value, rank, keys_values_as_one):
    tensor = rank % TENSOR
    if "q_lora_up" in name or ("kv_lora_up" in name and keys_values_as_one):
        return value.chunk(TENSOR, 0)[tensor]
    if "kv_lora_up" in name:
        return torch.cat([half.chunk(TENSOR, 0)[tensor] for half in value.chunk(2, 0)], 0)
    return value.chunk(TENSOR, 1)[tensor] if name.endswith("out_proj.weight") else value


def load(model, weights, rank, experts, keys_values_as_one):
    for name, param in model.named_parameters():
        parts = name.split(".")
        if rank is not None and "local_experts" in parts:
            parts[4] = str(int(parts[4]) + rank // TENSOR * (experts // EXPERT))
        value = weights[seed.our_name(".".join(parts))]
        with torch.no_grad():
            param.copy_(value if rank is None else part(name, value, rank, keys_values_as_one))


def forward(models, tokens, state):
    """Logits and what comes out of the last layer, a rank each."""
    sum_tensor, bias_once, sum_expert, shared_once, _ = state
    mask = torch.tril(torch.ones(tokens.shape[1], tokens.shape[1]))
    xs = [m.embedding(tokens).transpose(0, 1) for m in models]
    for i in range(len(models[0].layers)):
        blocks = [m.layers[i] for m in models]
        outs = [b.attention(b.norm1(x), mask) for b, x in zip(blocks, xs)]
        if sum_tensor:
            summed = [sum(outs[r // TENSOR * TENSOR + t] for t in range(TENSOR)) for r in range(RANKS)]
            outs = [s - (TENSOR - 1) * b.attention.out_proj.bias if bias_once else s for s, b in zip(summed, blocks)]
        xs = [x + out for x, out in zip(xs, outs)]
        normed = [b.norm2(x) for b, x in zip(blocks, xs)]
        outs = [b.moe(n) for b, n in zip(blocks, normed)]
        if sum_expert and hasattr(blocks[0].moe, "local_experts"):
            group = lambda r: [e * TENSOR + r % TENSOR for e in range(EXPERT)]
            shared = [b.moe.shared_expert(n) for b, n in zip(blocks, normed)]
            outs = [sum(outs[q] for q in group(r)) - (sum(shared[q] for q in group(r) if q != r) if shared_once else 0)
                    for r in range(RANKS)]
        xs = [x + out for x, out in zip(xs, outs)]
    hidden = [x.transpose(0, 1) for x in xs]
    return [m.lm_head(m.final_norm(x)) for m, x in zip(models, hidden)], hidden


def loss_of(logits, targets):
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100)


def error_of(a, b):
    return ((a - b).norm() / b.norm()).item()


def main():
    torch.set_num_threads(1)
    with open(sys.argv[1], encoding="utf-8") as f:
        report = f.read()
    weights = read_safetensors(sys.argv[2])
    with open(sys.argv[3], "rb") as f:
        tokens, targets, _ = goldens.pack(f.read(), SEQ, BATCH)
    config, demo = seed.modules(report, True)
    sizes = sizes_of(weights)
    whole = make(demo, sizes, None, 0)
    load(whole, weights, None, sizes[1]["num_experts"], False)
    right = whole(tokens)
    lines = ["sizes " + " ".join("%s=%d" % item for half in sizes for item in half.items()),
             "whole %.9g" % loss_of(right, targets).item()]
    router = "layers.%d.moe.gate.gate.weight" % (sizes[0]["num_layers"] - 1)
    for name, state in STATES.items():
        models = [make(demo, sizes, config.get_single_node_8gpu_config(), r) for r in range(RANKS)]
        for r, m in enumerate(models):
            load(m, weights, r, sizes[1]["num_experts"], state[4])
        logits, hidden = forward(models, tokens, state)
        for r in range(RANKS):
            flat = hidden[r].flatten()
            at = [(i * 1663 + 7) % flat.numel() for i in range(SAMPLES)]
            values = " ".join("%d %.9g" % (i, flat[i].item()) for i in at)
            lines.append("%s %d %.9g %.6g %.9g %s" % (name, r, loss_of(logits[r], targets).item(), error_of(logits[r], right), flat.norm().item(), values))
        print(name, ["%.3g" % error_of(a, right) for a in logits], ["%.4f" % (loss_of(a, targets) - loss_of(right, targets)) for a in logits])
    loss_of(right, targets).backward()
    loss_of(logits[0], targets).backward()  # of the right state, through the sums into every rank's copy
    due = dict(whole.named_parameters())[router].grad
    copies = [dict(models[e * TENSOR].named_parameters())[router].grad for e in range(EXPERT)]
    assert error_of(sum(copies), due) < 1e-5
    for e in range(EXPERT):
        lines.append("router %d %.6g" % (e * TENSOR, error_of(copies[e], due)))
    print("router", ["%.3g" % error_of(c, due) for c in copies])
    with open(sys.argv[4], "w", encoding="utf-8") as f:
        f.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
