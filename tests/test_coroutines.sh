#!/bin/sh
# How ranks switch stacks changes no result: the same digest on every backend, on one thread and on two, and the
# result names the backend that ran. usage: test_coroutines.sh HPSIM SCENARIOS
hpsim=$1 scenarios=$2
tmp=$(mktemp -d) || exit 99
trap 'rm -rf "$tmp"' EXIT
failed=0
fail() { echo "coroutines: $*"; failed=1; }
value() { sed -n "s/.*\"$1\": \"\([^\"]*\)\".*/\1/p" "$tmp/result" | head -1; }

# The list that a refusal gives is the list that is tried.
"$hpsim" run "$scenarios/pp4_fsdp2.json" --quiet --coroutine nonesuch >"$tmp/out" 2>"$tmp/err"
[ $? -eq 2 ] || fail "an unknown backend does not exit 2"
backends=$(sed -n 's/.*available: //p' "$tmp/err" | tr -d ,)
for must in sigsetjmp ucontext; do
    echo " $backends " | grep -q " $must " || fail "$must is not among: $backends"
done

first=
for backend in $backends default; do
    for threads in 1 2; do
        set -- --threads $threads
        [ $backend = default ] || set -- "$@" --coroutine $backend
        "$hpsim" run "$scenarios/pp4_fsdp2.json" --quiet --json "$tmp/result" "$@" >/dev/null || fail "$backend, $threads threads: exit $?"
        digest=$(value digest) ran=$(value coroutine)
        [ -n "$digest" ] || fail "no digest"
        [ "$digest" = "${first:=$digest}" ] || fail "$backend, $threads threads: digest $digest, not $first"
        [ $backend = default ] && expected=${backends%% *} || expected=$backend
        [ "$ran" = "$expected" ] || fail "asked for $expected, the result says $ran"
    done
done
[ $failed -eq 0 ] && echo "coroutines: one digest on $backends"
exit $failed
