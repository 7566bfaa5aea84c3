#!/bin/sh
# The binary as scripts use it: exit statuses, messages, files that are there whole or not at all.
# usage: cli_test.sh HPSIM SCENARIOS
hpsim=$1
scenarios=$2
work=$(mktemp -d) || exit 99
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
unset NO_COLOR
failed=0
count=0

# check NAME STATUS COMMAND...: runs it, its output into $work/out and $work/err
check() {
    name=$1 due=$2
    shift 2
    count=$((count + 1))
    "$@" >"$work/out" 2>"$work/err" </dev/null
    got=$?
    [ "$got" -eq "$due" ] || fail "exit status $got, $due is due: $(head -c 400 "$work/err")"
}
fail() {
    failed=$((failed + 1))
    echo "FAIL $name: $1"
}
# says WHERE TEXT: the last command's out or err holds the text
says() {
    grep -qF -- "$2" "$work/$1" || fail "\"$2\" is not in its $1: $(head -c 400 "$work/$1")"
}
silent() {
    [ ! -s "$work/$1" ] || fail "its $1 is not empty: $(head -c 400 "$work/$1")"
}

small="$work/small.json"
cat >"$small" <<'SCENARIO'
{"hpsim": 1, "name": "small", "seed": 3,
 "model": {"arch": "gpt", "layers": 2, "dim": 12, "heads": 3, "kv_heads": 3, "ffn": 20, "vocab": 256, "seq": 14},
 "data": {"text": "corpus.txt"}, "train": {"steps": 2, "global_batch": 6},
 "parallel": {"pp": 2, "dp_shard": 1, "pipeline": {"schedule": "1F1B", "microbatches": 3}}}
SCENARIO
cp "$scenarios/corpus.txt" "$work/corpus.txt"

# ---- words that are not understood: 2, one message, the nearest name ----
check "no arguments" 2 "$hpsim";                        says err "hpsim --help"
check "unknown command" 2 "$hpsim" vaildate x.json;     says err "did you mean hpsim validate"
check "unknown option" 2 "$hpsim" run --thread 2 x.json; says err "did you mean --threads"
check "missing argument" 2 "$hpsim" run;                says err "needs SCENARIO.json"
check "too many" 2 "$hpsim" run a.json b.json;          says err "got 2 arguments"
check "no such file" 2 "$hpsim" "$work/none.json";      says err "none.json"; silent out
check "unknown coroutine" 2 "$hpsim" "$small" --coroutine fiber; says err "not in this build"
check "unknown cpu path" 2 "$hpsim" "$small" --cpu-path z80; silent out
check "unknown check" 2 "$hpsim" "$small" --checks orakle; says err "did you mean oracle"
for command in campaign schedule plan compare fuzz replay; do
    check "$command later" 2 "$hpsim" $command x;       says err "is not there yet"
done
for option in --bisect --html --certify --trace; do
    check "$option later" 2 "$hpsim" run $option x.json; says err "is not there yet"
done
check "explain later" 2 "$hpsim" explain routing "$small"; says err "is not there yet"
check "explain unknown" 2 "$hpsim" explain los "$small"; says err "did you mean hpsim explain loss"

# ---- help, from the tables ----
check "help" 0 "$hpsim" --help;                         says out "campaign"; silent err
for command in run test explain diagnose validate schema faults sites checks; do
    check "$command help" 0 "$hpsim" $command --help;   says out "usage: hpsim $command"
done
check "version" 0 "$hpsim" --version;                   says out "hpsim "

# ---- curves ----
printf 'step,loss\n0,5.5\n' >"$work/one.csv"
printf 'step,loss\n0,5.5\n1,nan\n' >"$work/nan.csv"
check "diagnose without curves" 2 "$hpsim" diagnose "$small"; says err "needs --parallel FILE.csv"
check "diagnose nan" 2 "$hpsim" diagnose "$small" --parallel "$work/nan.csv" --standalone "$work/one.csv"
says err "nan.csv:3: the loss of step 1 is not finite"; silent out
check "diagnose noise" 2 "$hpsim" diagnose "$small" --parallel "$work/one.csv" --standalone "$work/one.csv" --noise 2; says err "between 0 and 1"
for threads in 1 3; do
    check "diagnose equal curves" 0 "$hpsim" diagnose "$small" --parallel "$work/one.csv" --standalone "$work/one.csv" --threads $threads --json "$work/d$threads.json"
    says out "NOT VISIBLE"
done
check "diagnose, threads don't matter" 0 cmp "$work/d1.json" "$work/d3.json"

# ---- registries ----
check "faults" 0 "$hpsim" faults;                       says out "loss-divided-twice"
check "one fault" 0 "$hpsim" faults loss-divided-twice; says out "AReaL"
check "near fault" 2 "$hpsim" faults loss-devided-twice; says err "did you mean loss-divided-twice"
check "sites" 0 "$hpsim" sites;                         says out "pp.loss.scale"; says out "lack a facet"
check "one site" 0 "$hpsim" sites pp.grad.clear;        says out "needs compares-index"
check "checks" 0 "$hpsim" checks;                       says out "token-weight"
check "one check" 0 "$hpsim" checks token-weight;       says out "loss-divided-twice"
for list in faults sites checks; do
    check "$list json" 0 "$hpsim" $list --json "$work/$list.json"; silent out
    [ "$(head -c 1 "$work/$list.json")" = "[" ] || fail "no list in $list.json"
    check "$list json alone" 0 "$hpsim" $list --json;   cmp -s "$work/out" "$work/$list.json" || fail "another list than in a file"
    check "$list json and more" 0 "$hpsim" $list --json --color never; cmp -s "$work/out" "$work/$list.json" || fail "another list than in a file"
done
check "schema" 0 "$hpsim" schema;                       says out '"$schema"'
check "schema key" 0 "$hpsim" schema parallel.fsdp.zero; says out "an integer from 0 to 3"; says out "--set "; silent err
check "schema key in a list" 0 "$hpsim" schema faults.0.at.step; says out "faults[].at.step"
check "schema section" 0 "$hpsim" schema parallel.fsdp; says out "parallel.fsdp.reduce_op"; says out "an object"
check "schema wrong key" 2 "$hpsim" schema layout.zero;  says err "did you mean parallel.fsdp.zero"; silent out
check "schema two keys" 2 "$hpsim" schema model data;   silent out
check "schema page" 0 "$hpsim" schema --markdown;       says out '| `train.steps` |'
check "fault without its format" 2 "$hpsim" "$small" --fault pp.send_grad:wrong-format; silent out
says err "needs 'format'"; says err "@format=bf16"
check "fault echoed" 1 "$hpsim" "$small" --fault loss-divided-twice@rank=1,microbatch=0+2,step=1,factor=1/P
says out "loss-divided-twice at rank 1, step 1, micro-batches 0, 2, with factor 1/P:"
check "fault given" 1 "$hpsim" "$small" --fault loss-divided-twice@rank=1,step=1 --json -
says out '"given":'; says out '"loss-divided-twice@rank=1,step=1"'
check "fault help" 0 "$hpsim" faults --help;            says out "microbatch"; says out "factor"
check "fault's arguments" 0 "$hpsim" faults coll-dtype-mismatch; says out "takes       format"
check "judged" 0 "$hpsim" "$small" --checks deep --set precision.param=bf16 --set precision.compute=bf16; says out "judged in fp64: "

# ---- validate ----
check "validate" 0 "$hpsim" validate "$small";          says out "ok: small: 2 ranks = pipeline 2"
check "validate bad" 2 "$hpsim" validate "$small" --set parallel.pp=3; silent out
echo '{"hpsim": 1, "paralel": {}}' >"$work/bad.json"
check "validate misspelt" 2 "$hpsim" validate "$work/bad.json"; says err "bad.json:1:"; says err "parallel"

# ---- run: verdicts, files ----
check "run" 0 "$hpsim" "$small" --color never;          says out "CONSISTENT, as expected"; silent err
check "quiet" 0 "$hpsim" "$small" --quiet
[ "$(wc -l <"$work/out")" -eq 1 ] || fail "more than one line"
check "colour" 0 "$hpsim" "$small" --quiet --color always
grep -q "$(printf '\033')" "$work/out" || fail "no colour"
check "fault" 1 "$hpsim" "$small" --fault loss-divided-twice
says out "DIVERGED in pp.loss, not as expected"
check "expected fault" 0 "$hpsim" "$small" --fault loss-divided-twice --set expect.verdict=diverged
says out "as expected"
check "never hit" 1 "$hpsim" "$small" --fault loss-divided-twice@step=9 --quiet
check "json on standard output" 0 "$hpsim" "$small" --json -
[ "$(head -c 1 "$work/out")" = "{" ] || fail "not only JSON"
check "files" 0 "$hpsim" "$small" --quiet --json "$work/r.json" --csv "$work/r.csv" --dump "$work/r.safetensors"
head -n 1 "$work/r.csv" | grep -qx "step,loss_parallel,loss_logged,loss_standalone,grad_norm_parallel,grad_norm_standalone" ||
    fail "CSV header"
[ "$(wc -l <"$work/r.csv")" -eq 3 ] || fail "CSV lines"
grep -qa "grad.layers.1.attention.wq.weight" "$work/r.safetensors" || fail "no gradient in the dump"
ls "$work"/*.tmp >/dev/null 2>&1 && fail "a temporary file stayed"
check "same again" 0 "$hpsim" "$small" --quiet --json "$work/s.json" --threads 2 --interleave 5
grep '"digest"' "$work/r.json" >"$work/a"; grep '"digest"' "$work/s.json" >"$work/b"
cmp -s "$work/a" "$work/b" || fail "another digest with other threads"
check "no such folder" 2 "$hpsim" "$small" --json "$work/none/r.json"; silent out; says err "cannot write --json"
check "collision" 2 "$hpsim" "$small" --json "$work/x" --csv "$work/x"; says err "both write"
mkfifo "$work/pipe"
check "dump into a pipe" 2 "$hpsim" "$small" --dump "$work/pipe"; says err "no regular file"
if [ -c /dev/full ]; then
    check "full disk" 2 "$hpsim" "$small" --quiet --csv /dev/full; says err "No space left"
    check "full standard output" 2 sh -c '"$0" faults >/dev/full' "$hpsim"; says err "No space left"
fi
check "reader that leaves" 0 sh -c '{ "$0" faults; echo $? >"$1"; } | head -n 1' "$hpsim" "$work/status"
[ "$(cat "$work/status")" = 0 ] || fail "status $(cat "$work/status") into a closed pipe"
silent err

# ---- explain ----
check "explain" 0 "$hpsim" explain loss "$small";       says out "every valid token weighs 1/N"
says out "mean of means"
check "explain fault" 0 "$hpsim" explain loss "$small" --fault loss-divided-twice; says out "pp.loss.scale is 1/M"
check "explain json" 0 "$hpsim" explain loss "$small" --json -; says out '"mean_of_means"'
says out '"conventions"'
check "explain gradients" 0 "$hpsim" explain gradients "$small"; says out "pytorch_mean"; says out "divided again"
check "explain gradients json" 0 "$hpsim" explain gradients "$small" --json -; says out '"mistakes"'
check "convention" 0 "$hpsim" "$scenarios/pp4_fsdp3.json" --set train.loss_normalization=megatron; says out "warning: megatron prints"
check "warnings json" 0 "$hpsim" "$small" --json - --quiet; says out '"warnings"'

# ---- test ----
mkdir -p "$work/set/inner"
cp "$small" "$work/set/b_small.json"; cp "$work/corpus.txt" "$work/set/"
sed 's/"small"/"wrong"/; s/"parallel": {/"expect": {"verdict": "diverged"}, &/' "$small" >"$work/set/a_wrong.json"
check "test passes" 0 "$hpsim" test "$small";           says out "1 passed, 0 failed"
check "test fails" 1 "$hpsim" test "$work/set" --jobs 2 --junit "$work/j.xml" --json "$work/t.json"
says out "1 passed, 1 failed"
head -n 1 "$work/out" | grep -q "FAIL  wrong" || fail "not in the order of names"
grep -q 'failures="1"' "$work/j.xml" || fail "JUnit"
grep -q '"as_expected"' "$work/t.json" || fail "rows"
cp "$work/bad.json" "$work/set/inner/"
check "test unreadable" 1 "$hpsim" test "$work/set";    says out "FAIL  bad"; says out "1 passed, 2 failed"
mkdir "$work/empty"
check "test nothing" 2 "$hpsim" test "$work/empty";     says err "no scenario found"
check "test nowhere" 2 "$hpsim" test "$work/none"

# ---- Ctrl-C: under a second, 130, no half-written file ----
name="interrupt" count=$((count + 1))
"$hpsim" "$small" --set train.steps=20000 --json "$work/i.json" >"$work/out" 2>"$work/err" &
running=$!
sleep 0.3
kill -TERM $running
wait $running
got=$?
[ $got -eq 130 ] || fail "exit status $got, 130 is due: $(cat "$work/err")"
ls "$work"/i.json* >/dev/null 2>&1 && fail "a file stayed"

echo "$count commands, $failed failures"
[ $failed -eq 0 ]
