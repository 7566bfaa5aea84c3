#!/bin/sh
# Healthy jobs at the edges raise nothing: sizes of one, empty shards, gradients that vanish, momentum, many steps,
# numbers that leave the finite ones, blocking sends in every schedule; what raised something once is in tests/healthy, and
# in tests/mixed what is to raise just what it expects.
# usage: test_healthy_edges.sh HPSIM SOURCE_ROOT
hpsim=$(realpath "$1")
cd "$2" || exit 99
failed=0 passed=0
healthy() {
    scenario=$1
    shift
    if out=$("$hpsim" "scenarios/$scenario.json" --quiet --color never "$@" 2>&1); then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "not consistent: $scenario $*: $out"
    fi
}
small='--set train.steps=2'
for checks in default deep; do
    healthy pp4_fsdp3 --checks $checks --set model.ffn=1 $small
    healthy pp4_fsdp3 --checks $checks --set model.dim=1 --set model.heads=1 --set model.kv_heads=1 --set model.head_dim=2 $small
    healthy pp4_fsdp3 --checks $checks --set model.seq=1 --set data.packing=stream $small
    healthy pp2_fsdp5_gpipe --checks $checks --set model.dim=3 --set model.kv_heads=1 --set model.vocab=257 $small
    healthy pp3_ddp2_uneven_layers --checks $checks --set train.optimizer.kind=sgd --set train.optimizer.lr=0.1 --set train.optimizer.momentum=0.9
done
for once in tests/healthy/*.json; do
    healthy "../${once%.json}" --checks deep
done
for mixed in tests/mixed/*.json; do # faults in layouts of many axes, that crashed once or had another's name
    healthy "../${mixed%.json}"
done
# Latent attention and experts: one of each, all chosen, none left out, tiny and endless room, hardly anything kept.
m=model.moe
for checks in default deep; do
    healthy bf16_tp2_experts --checks $checks --set $m.experts=1 --set $m.top_k=1 $small
    healthy bf16_tp2_experts --checks $checks --set $m.top_k=7 --set $m.shared_ffn=0 $small
    healthy bf16_tp2_experts --checks $checks --set $m.capacity_factor=0.01 --set $m.normalize_after_drop=true $small
    healthy bf16_tp2_experts --checks $checks --set $m.capacity_factor=1e6 --set $m.drop_policy=position --set $m.score=softmax $small
    healthy bf16_tp2_experts --checks $checks --set model.dropout=0.99 --set recompute=full --set precision=fp32 $small
    healthy bf16_tp2_experts --checks $checks --set model.attention=mla --set model.mla.q_lora_rank=0 --set model.mla.kv_lora_rank=1 --set model.seq=1 $small
done
healthy pp4_fsdp3 --set train.optimizer.kind=sgd --set train.optimizer.lr=1e6 --set train.grad_clip=null
healthy pp4_fsdp3 --set train.optimizer.lr=0
healthy pp4_fsdp3 --set train.steps=60 --checks deep
healthy pp4_fsdp3 --set parallel.fsdp.reduce_op=sum --set parallel.fsdp.sync=each_microbatch --set model.bias=true --set model.rope=false
for schedule in GPipe 1F1B; do
    for microbatches in 1 5; do
        healthy pp4_fsdp3 --set parallel.pipeline.send=sync --set parallel.pipeline.schedule=$schedule --set train.steps=1 \
            --set parallel.pipeline.microbatches=$microbatches
    done
done
for path in avx512 avx2 plain; do # those that this machine has
    "$hpsim" scenarios/pp4_fsdp3.json --quiet --cpu-path $path --set train.steps=1 --json - 2>/dev/null | sed -n 's/.*"digest": *"\(.*\)".*/\1/p'
done | sort -u | wc -l | grep -qx 1 || { echo 'the digest depends on the CPU path'; failed=$((failed + 1)); }
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
