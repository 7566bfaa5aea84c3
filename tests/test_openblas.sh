#!/bin/sh
# OpenBLAS is loaded when it is asked for, with the core type of the CPU path, or the user's; the result names it;
# where it can't be loaded, that is the user's affair and says what to install. usage: test_openblas.sh HPSIM SCENARIOS
hpsim=$1 scenario=$2/pp4_fsdp2.json
unset OPENBLAS_CORETYPE
tmp=$(mktemp -d) || exit 99
trap 'rm -rf "$tmp"' EXIT
failed=0
fail() { echo "openblas: $*"; failed=1; }
value() { sed -n "s/.*\"$1\": \"\([^\"]*\)\".*/\1/p" "$tmp/result" | head -1; }
run() { "$hpsim" run "$scenario" --quiet --json "$tmp/result" "$@" >"$tmp/out" 2>"$tmp/err"; }

# A library that is none.
: >"$tmp/libopenblas.so.0"
LD_LIBRARY_PATH=$tmp${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} run --gemm openblas
code=$?
[ $code -eq 2 ] || fail "exit $code without the library"
grep -q 'apt install libopenblas0-serial' "$tmp/err" || fail "without the library, it does not say what to install"
LD_LIBRARY_PATH=$tmp${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} run || fail "gemm fixed needs OpenBLAS"
grep -q '"openblas_core": null' "$tmp/result" || fail "a run with gemm fixed names a core"

run --gemm openblas --threads 1
code=$?
if grep -q 'cannot load OpenBLAS' "$tmp/err"; then
    echo "openblas: not installed"
    [ $failed -eq 0 ] && exit 77
    exit 1
fi
[ $code -eq 0 ] || fail "exit $code"
one=$(value digest) core=$(value openblas_core)
case $core in *"; OpenBLAS "*) ;; *) fail "core and build: '$core'" ;; esac
# The serial flavour is not safe to call from two threads at once, which showed in nearly every run.
for again in 1 2; do
    run --gemm openblas --threads 2 || fail "two threads: $(cat "$tmp/out")"
    [ "$(value digest)" = "$one" ] || fail "two threads and one give different digests"
done

# Every path takes its own core type.
for pair in avx512:SkylakeX avx2:Haswell plain:Nehalem; do
    run --gemm openblas --cpu-path "${pair%:*}" --set train.steps=1 || { grep -q 'CPU path' "$tmp/err" && continue; fail "$pair: exit"; }
    case $(value openblas_core) in "${pair#*:};"*) ;; *) [ "$(uname -m)" = x86_64 ] && fail "$pair: $(value openblas_core)" ;; esac
done

# The user's own choice stands.
if [ "$(uname -m)" = x86_64 ]; then
    OPENBLAS_CORETYPE=Prescott run --gemm openblas --set train.steps=1 || fail "exit with Prescott"
    case $(value openblas_core) in Prescott*) ;; *) fail "the user's Prescott became $(value openblas_core)" ;; esac
fi
[ $failed -eq 0 ] && echo "openblas: $core"
exit $failed
