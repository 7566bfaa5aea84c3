#!/bin/sh
# Plug-ins (model/plugin/hpsim.h): the right ones agree with the reference and with the built-in ones that they mirror, whatever threads and
# orders; the wrong ones are named; crashes, loops and exits end with plug-in, rank and operation; what is no plug-in is refused.
# usage: test_plugins.sh HPSIM SOURCE_ROOT BUILD_ROOT [long]
# long: every number of members in every layout under every mask, else every second of them
long=$4
hpsim=$(realpath "$1")
build=$(realpath "$3")
header=$(realpath "$2/model/plugin/hpsim.h")
work=$(mktemp -d) || exit 99
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 99
right=$build/tools/plugins
wrong=$build/tests/plugins
failed=0
fail() { echo "plugins: $*"; failed=1; }

cat >attention.json <<'END'
{"hpsim": 1, "workload": "attention", "model": {"heads": 4, "kv_heads": 2, "head_dim": 6, "seq": 23, "causal": false},
 "parallel": {"cp": 3, "context": {"layout": "contiguous"}}}
END
cat >train.json <<'END'
{"hpsim": 1, "model": {"layers": 2, "dim": 12, "heads": 2, "ffn": 20, "vocab": 256, "seq": 7}, "train": {"steps": 2, "global_batch": 12},
 "parallel": {"pp": 2, "dp_replicate": 3, "pipeline": {"microbatches": 4}}}
END

sed 's/"pp": 2, //' train.json >flat.json # every rank reduces with every other

# field NAME: of the result in o.json, one key a line.
field() { sed -n "s/^ *\"$1\":[ 	]*\"\{0,1\}\([^\",]*\)\"\{0,1\},\{0,1\}\$/\1/p" o.json | head -n 1; }
says() { grep -qF "$1" o.json || fail "$2: the result does not say: $1"; }

# run STATUS ARGUMENTS...: o.json, o.txt (both streams)
run() {
    due=$1; shift
    rm -f o.json
    timeout 60 "$hpsim" run "$@" --json o.json >o.txt 2>&1
    got=$?
    [ $got -eq "$due" ] && return 0
    fail "status $got and not $due: run $*"; sed 's/^/    /' o.txt | tail -n 5
    return 1
}

# ---- attention: right at every number of members, in every layout, under every mask ----
turn=0 # moves on by one more from one layout, and one number of members, to the next: any two of the three meet
for members in 1 2 3 4 5; do
    turn=$((turn + 1))
    for layout in contiguous zigzag striped document; do
        turn=$((turn + 1))
        for causal in true false; do
            turn=$((turn + 1))
            [ "$long" = long ] || [ $((turn % 2)) -eq 0 ] || continue
            run 0 attention.json --threads 1 --quiet --set plugin="$right/ring_right.so" --set parallel.cp=$members \
                --set parallel.context.layout=$layout --set model.causal=$causal
        done
    done
done
for more in model.window=5 precision=fp64 precision=bf16 model.seq=3 parallel.dp_replicate=2 attention.batch=2 parallel.context.method=plugin; do
    run 0 attention.json --quiet --set plugin="$right/ring_right.so" --set parallel.context.layout=zigzag --set "$more"
done
run 0 attention.json --quiet --set plugin="$right/ring_right.so" --set model.document_mask=true --set 'attention.documents=[6,10,7]'
run 0 attention.json --quiet --checks deep --set plugin="$right/ring_right.so"
run 0 attention.json --quiet --set plugin="$right/ring_right.so" --set parallel.context.method=all_gather
says 'cp.kv_gather' 'a built-in method beside a plug-in that is not used'

# ---- the same whatever threads, order of ready ranks and coroutines ----
digests=
for how in '--threads 1' '--threads 2' '--threads 2 --interleave 5' '--threads 1 --interleave 9' '--threads 1 --coroutine ucontext'; do
    # shellcheck disable=SC2086
    run 0 attention.json --quiet $how --set plugin="$right/ring_right.so" --set parallel.context.layout=striped
    digests="$digests $(field digest)"
done
[ "$(echo $digests | tr ' ' '\n' | sort -u | wc -l)" -eq 1 ] || fail "digests differ: $digests"

# ---- the wrong ones, named from outside ----
wrong_one() { # wrong_one PLUG-IN VERDICT COMPONENT WORDS
    run 1 attention.json --quiet --set plugin="$right/$1.so" || return
    [ "$(field verdict)" = "$2" ] || fail "$1: verdict $(field verdict) and not $2"
    [ "$(field component)" = "$3" ] || fail "$1: component $(field component) and not $3"
    says "$4" "$1"
}
wrong_one ring_local_only diverged cp.hop 'every rank consumes only its own keys and values'
wrong_one ring_no_merge diverged cp.merge "each block's result is written over the one before, not merged with it"
wrong_one ring_skip_unguarded diverged cp.skip 'blocks of later members are left out, as a causal mask of contiguous shards would have it'
wrong_one ring_deadlock deadlock plugin "in plug-in 'ring_deadlock', attention forward: wait for send to member 1, hop 1"
# Where they are right, nothing is said.
run 0 attention.json --quiet --set plugin="$right/ring_skip_unguarded.so" --set model.causal=true
run 0 attention.json --quiet --set plugin="$right/ring_local_only.so" --set parallel.cp=1
run 0 attention.json --quiet --set plugin="$right/ring_no_merge.so" --set parallel.cp=1

# ---- each one's own scenario, with what it expects ----
"$hpsim" test "$right" >o.txt 2>&1 || { fail 'hpsim test tools/plugins'; cat o.txt; }
grep -q '8 passed, 0 failed' o.txt || { fail 'hpsim test tools/plugins'; cat o.txt; }

# ---- faults of the catalogue's kind in a plug-in's communication ----
for fault in plugin.send:drop@rank=1 plugin.send:corrupt@rank=1,hop=2 plugin.send:wrong-peer@rank=2,hop=1 plugin.send:scale@hop=1; do
    run 1 attention.json --quiet --set plugin="$right/ring_right.so" --fault $fault
done
run 1 attention.json --quiet --set plugin="$wrong/misuse.so" --set attention.backward=false --fault plugin.collective:scale

# ---- a plug-in that rounds otherwise does so for itself alone ----
run 0 attention.json --quiet --set plugin="$wrong/misuse.so" --set attention.backward=false
digest=$(field digest)
run 0 attention.json --quiet --set plugin="$wrong/misuse.so" --set attention.backward=false --set model.window=1026
[ "$(field digest)" = "$digest" ] || fail "a rounding mode that a plug-in left behind changes $digest to $(field digest)"

# ---- rules broken, one each: member, operation, call ----
broken() { # broken NUMBER WORDS
    run 1 attention.json --quiet --set plugin="$wrong/misuse.so" --set attention.backward=false --set model.window=$((1000 + $1)) || return
    [ "$(field component)" = plugin ] || fail "rule $1: component $(field component)"
    says "$2" "rule $1"
}
run 0 attention.json --quiet --checks deep --set plugin="$wrong/misuse.so" --set attention.backward=false
run 0 attention.json --quiet --set plugin="$wrong/misuse.so" --set attention.backward=false --set model.window=1021 # lse left alone
broken 1 "on rank 0, attention forward, at send to member 7: send: member 7; there are members 0 to 2"
broken 2 "97 elements of k, which has 96 there"
broken 3 "into its input k"
broken 4 "waits twice for receive from member 2, tag 3, hop 1"
broken 5 "send to member 1, tag 3, hop 1 was started and never waited for"
broken 6 "frees a place in q, which is no workspace of this call"
broken 7 "frees a workspace twice"
broken 8 "wrote behind the end of out (768 bytes)"
broken 9 "wrote to its input q"
broken 10 "left 24 of 192 elements of out unfilled; the first: sequence 0, row 0, head 0, element 0"
broken 11 "changed the data of its send to member 1, tag 3, hop 1 before waiting for it"
broken 12 "returned 3: it could not be done"
broken 15 "tag -1"
broken 16 "all_gather: counts are NULL"
broken 18 "waits for what is no transfer of this call"
broken 19 "the data is NULL and the count 3"
broken 20 "all_to_all_uneven: counts are NULL"
broken 23 "wire 7"
broken 24 "out and in overlap"
broken 25 "positions of member 3 in sequence 0; there are 3 members"

broken 28 "all_to_all_uneven: sends 2 elements to itself and receives 1"
broken 29 "all_gather: count -1 for member 0"
broken 30 "positions of member 0 in sequence -1"
broken 31 "send: count -1"
broken 32 "a workspace that was freed"

# ---- what ends the process ----
ended() { # ended NAME WORDS: an all-reduce on rank 1
    start=$(date +%s)
    HPSIM_PLUGIN_SECONDS=1 run 1 flat.json --quiet --threads 2 --set plugin="$wrong/misbehave.so" --set parallel.collectives.all_reduce="$1" || return
    [ $(($(date +%s) - start)) -le 20 ] || fail "$1 took $(($(date +%s) - start)) s"
    [ "$(field verdict) $(field component)" = 'violated plugin' ] || fail "$1: $(field verdict) in $(field component)"
    says "plug-in 'misbehave', rank 1, all_reduce '$1': $2" "$1"
    grep -qF "hpsim: plug-in 'misbehave', rank 1, all_reduce '$1': $2" o.txt || fail "$1: not said on standard error"
}
ended crash 'it ended by a segmentation fault'
ended divide 'it ended by an arithmetic error'
ended abort 'it ended by abort()'
ended exit 'it called exit(0)'
ended exit_at_once 'it ended the process with status 0'
ended free 'it ended '
ended stack 'it ended by a segmentation fault'
ended loop 'it has computed for 1 s of processor time without a call'
ended sleep 'it has slept for 1 s without a call'
ended fork 'it forked'
ended copy 'it forked'
HPSIM_PLUGIN_SECONDS=1 run 1 attention.json --quiet --set plugin="$wrong/misuse.so" --set attention.backward=false --set model.window=1013
says "plug-in 'misuse', rank 2, attention forward (step 0, micro-batch 0, layer 0): it ended by a segmentation fault; its last call of hpsim: wait for receive from member 1, tag 3, hop 1" crash
HPSIM_PLUGIN_SECONDS=1 run 1 attention.json --quiet --set plugin="$wrong/misuse.so" --set attention.backward=false --set model.window=1014
says "plug-in 'misuse', rank 1, attention forward (step 0, micro-batch 0, layer 0): it has computed for 1 s" loop
run 1 attention.json --quiet --threads 1 --set plugin="$wrong/misuse.so" --set attention.backward=false --set model.window=1027
says "plug-in 'misuse', rank 2, attention forward (step 0, micro-batch 0, layer 0): it ended by a segmentation fault in a function of hpsim that it called: is there what it gave?; its last call of hpsim: send to member 0, hop 1" 'a wild pointer'
run 1 flat.json --quiet --set plugin="$wrong/misbehave.so" --set parallel.collectives.all_reduce=wrong_member
says "plug-in 'misbehave' on rank 1, all_reduce 'wrong_member', at send to member 6" wrong_member
run 1 flat.json --quiet --set plugin="$wrong/misbehave.so" --set parallel.collectives.all_reduce=deadlock
[ "$(field verdict)" = deadlock ] || fail "deadlock of an algorithm: $(field verdict)"
says "in plug-in 'misbehave', all_reduce 'deadlock': receive_add from member" deadlock

# What it started and left behind ends with it.
run 0 flat.json --quiet --set plugin="$wrong/misbehave.so" --set parallel.collectives.all_reduce=leave_behind
[ -s left.pid ] || fail 'nothing was left behind to be ended'
grep -q sleep "/proc/$(cat left.pid)/cmdline" 2>/dev/null && { fail 'what a plug-in left behind goes on'; kill "$(cat left.pid)"; }

# Standard output is the report's.
for to in --quiet '--json -'; do
    # shellcheck disable=SC2086
    timeout 60 "$hpsim" run flat.json $to --set plugin="$wrong/misbehave.so" --set parallel.collectives.all_reduce=fold >o.fold 2>o.txt || fail "status $? of fold $to"
    # shellcheck disable=SC2086
    timeout 60 "$hpsim" run flat.json $to --set plugin="$wrong/misbehave.so" --set parallel.collectives.all_reduce=print >o.print 2>o.txt || fail "status $? of print $to"
    grep -q words o.print && fail "what a plug-in prints stands in the output of $to"
    [ "$(head -c 1 o.print)" = "$(head -c 1 o.fold)" ] || fail "output of $to begins otherwise where a plug-in prints"
    [ "$(wc -l <o.print)" -eq "$(wc -l <o.fold)" ] || fail "output of $to has other lines where a plug-in prints"
    for words in 'unbuffered words' 'buffered words'; do grep -qx "$words" o.txt || fail "not on standard error: $words"; done
done

# A suite goes on, and an expectation can name it.
mkdir suite
sed "s|\"workload\"|\"plugin\": \"$wrong/misuse.so\", \"attention\": {\"backward\": false}, \"expect\": {\"verdict\": \"violated\", \"component\": \"plugin\", \"ranks\": [2], \"checks\": [\"plugin\"]}, \"workload\"|; s|\"seq\"|\"window\": 1013, \"seq\"|" attention.json >suite/a_crash.json
sed "s|\"workload\"|\"plugin\": \"../right.so\", \"workload\"|" attention.json >suite/b_right.json
cp attention.json suite/c_none.json
cp "$right/ring_right.so" right.so # a path is relative to the scenario
"$hpsim" test suite >o.txt 2>&1 || { fail 'hpsim test'; cat o.txt; }
grep -q '3 passed, 0 failed' o.txt || { fail 'hpsim test'; cat o.txt; }

# ---- Ctrl-C while it loops ----
"$hpsim" run attention.json --quiet --set plugin="$wrong/misuse.so" --set attention.backward=false --set model.window=1014 >o.txt 2>&1 &
process=$!
sleep 1
start=$(date +%s)
kill -INT $process
wait $process
got=$?
[ $got -eq 130 ] || fail "interrupted: status $got"
[ $(($(date +%s) - start)) -le 3 ] || fail 'an interrupt took longer than it may'

# ---- a collective, a schedule, a loss: the bits of the ones that they mirror ----
mirrors() { # mirrors WHAT PLUG-IN KEY ITS-NAME BUILT-IN-NAME
    run 0 train.json --quiet --csv a.csv --dump a.safetensors --set plugin="$right/$2.so" --set "$3=$4"
    run 0 train.json --quiet --csv b.csv --dump b.safetensors --set "$3=$5"
    cmp -s a.csv b.csv || fail "$1: losses differ from those of $5"
    cmp -s a.safetensors b.safetensors || fail "$1: parameters or gradients differ from those of $5"
}
mirrors collective all_reduce_root parallel.collectives.all_reduce root fold
mirrors schedule schedule_one_more parallel.pipeline.schedule 1F1B-one-more 1F1B
mirrors loss loss_per_microbatch train.loss_normalization per_microbatch nanotron
run 0 train.json --quiet --set plugin="$right/loss_per_microbatch.so" --set train.loss_normalization=per_microbatch --checks deep
run 0 train.json --quiet --set plugin="$right/schedule_one_more.so" --set parallel.pipeline.schedule=1F1B-one-more --checks deep
run 0 train.json --quiet --set plugin="$right/all_reduce_root.so" --set parallel.collectives.all_reduce=root --checks deep
"$hpsim" explain loss train.json --set plugin="$right/loss_per_microbatch.so" --set train.loss_normalization=per_microbatch >o.txt 2>&1 || fail 'explain loss'
grep -q per_microbatch o.txt || fail 'explain loss does not name it'
"$hpsim" explain ring attention.json --set plugin="$right/ring_right.so" --color never >o.txt 2>&1 || fail 'explain ring'
grep -q "is a plug-in's, " o.txt || fail 'explain ring does not say whose ring it shows'
"$hpsim" explain ring attention.json --color never >o.txt 2>&1 || fail 'explain ring without a plug-in'
! grep -q "plug-in" o.txt || fail 'explain ring names a plug-in where there is none'

# ---- what is no plug-in ----
refused() { # refused PLUG-IN WORDS [ARGUMENTS...]
    file=$1 words=$2; shift 2
    run 2 train.json --quiet --set plugin="$file" "$@" || return
    grep -qF "$words" o.txt || { fail "$file: not said: $words"; cat o.txt; }
    grep -qF "$file" o.txt || fail "$file: its path is not said"
    grep -q '  hint: ' o.txt || fail "$file: no hint"
}
echo 'not a shared object' >text.so
head -c 300 "$right/ring_right.so" >cut.so
mkdir folder.so
refused "$work/missing.so" 'does not exist'
refused "$work/text.so" 'cannot be loaded'
refused "$work/cut.so" 'cannot be loaded'
refused "$work/folder.so" 'is a folder, not a file'
run 2 train.json --set plugin="$(printf '%0600d' 0)"
grep -qF "allowed: " o.txt && grep -qF 511 o.txt || { fail 'a path that is too long'; cat o.txt; }
refused "$wrong/bad_no_entry.so" 'has no function hpsim_plugin'
refused "$wrong/bad_null_entry.so" 'returned NULL'
refused "$wrong/bad_old.so" 'is made for version 77 of hpsim.h; this hpsim takes 1'
refused "$wrong/bad_short.so" 'says that it has 12 bytes'
refused "$wrong/bad_nameless.so" 'has no name'
refused "$wrong/bad_empty.so" 'brings nothing'
refused "$wrong/bad_taken.so" "hpsim has an algorithm 'ring' of all_reduce of its own"
refused "$wrong/bad_operation.so" "of the operation 'all_sum'"
refused "$wrong/bad_two_algorithms.so" "brings two algorithms of the name 'mine'"
refused "$wrong/bad_two_schedules.so" "brings two schedules of the name 'backwards'"
refused "$wrong/bad_two_losses.so" "brings two loss normalizations of the name 'mine'"
refused "$wrong/bad_expression.so" "scale '1/Q'"
run 2 train.json --set plugin="$wrong/bad_schedule.so" --set parallel.pipeline.schedule=backwards
grep -qF 'is the backward of micro-batch 0 before its forward' o.txt || fail 'a schedule that cannot be run'
run 2 train.json --set plugin="$right/schedule_one_more.so" --set parallel.pipeline.schedule=1F1B-one-mor
grep -qF "of the plug-in: '1F1B-one-more'" o.txt && grep -qF "did you mean '1F1B-one-more'" o.txt || fail 'a misspelt name of a plug-in'
run 2 attention.json --set plugin="$wrong/misuse.so"
grep -qF 'has no backward' o.txt || fail 'an attention without a backward'
run 2 attention.json --set plugin="$wrong/misuse.so" --set attention.backward=false --set model.window=1017
grep -qF 'refuses: this window is the one that it does not like' o.txt || fail 'an attention that refuses'
# How many sequences an attention is told of, when it is asked and when it is called, is the same.
sed 's/"workload": "attention", "model": {/"workload": "denoise", "model": {"layers": 1, "dim": 24, "ffn": 20, /' attention.json >denoise.json
run 2 attention.json --set plugin="$wrong/misuse.so" --set attention.backward=false --set attention.batch=3 --set model.window=1033
grep -qF 'refuses: 3 sequences' o.txt || { fail 'sequences told to an attention'; cat o.txt; }
run 2 denoise.json --set plugin="$wrong/misuse.so" --set attention.batch=3 --set model.window=1033
grep -qF 'refuses: 3 sequences' o.txt || { fail 'sequences told to an attention in denoise'; cat o.txt; }
run 1 train.json --set plugin="$wrong/bad_crashes.so"
grep -qF "bad_crashes.so', loading: it ended by abort()" o.txt || fail 'a crash while it is loaded'

# ---- the library lets nothing out but what hpsim.h declares ----
names=$(nm -D --defined-only "$build"/libhpsim.so | sed 's/.* //; s/@.*//' | sort | tr '\n' ' ')
[ "$names" = 'hpsim_free hpsim_run hpsim_version ' ] || fail "names of libhpsim: $names"
if command -v c++ >/dev/null; then
    c++ -std=c++11 -Wall -Wextra -Wpedantic -Werror -fsyntax-only -x c++ "$header" 2>o.txt || { fail 'hpsim.h as C++'; cat o.txt; }
fi
[ $failed -eq 0 ] && echo 'plugins: as they must be'
exit $failed
