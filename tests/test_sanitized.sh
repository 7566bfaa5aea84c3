#!/bin/sh
# Small scenarios on two threads, on every coroutine backend, under ThreadSanitizer and under valgrind: no report, and
# the verdict that is expected. One of them deadlocks, so that parked stacks are dropped too.
# usage: test_sanitized.sh SOURCE_ROOT BUILD BUILD_TSAN  (builds that exist; .ci/run --sanitizers makes them)
# valgrind 3.19 knows no AVX-512 and hides it from CPUID, so the best CPU path there is avx2; plain is run as well.
source=$1 build=$2 tsan=$3
failed=0
backends=$("$build/hpsim" run "$source/scenarios/pp4_fsdp2.json" --coroutine nonesuch 2>&1 | sed -n 's/.*available: //p' | tr -d ,)
[ -n "$backends" ] || { echo "sanitized: no list of coroutine backends"; exit 1; }

try() { # try NAME COMMAND...
    name=$1; shift
    if out=$("$@" 2>&1); then echo "ok    $name"; else failed=1; echo "FAIL  $name"; echo "$out" | head -60; fi
}
export TSAN_OPTIONS=halt_on_error=1:exitcode=66

# The canary: two threads write one variable. A checker that says nothing about it says nothing.
tmp=$(mktemp -d) || exit 99
trap 'rm -rf "$tmp"' EXIT
cat >"$tmp/race.c" <<'END'
#include <pthread.h>
static int shared;
static void *writer(void *argument) { shared++; return argument; }
int main(void)
{
    pthread_t a, b;
    pthread_create(&a, 0, writer, 0);
    pthread_create(&b, 0, writer, 0);
    pthread_join(a, 0);
    pthread_join(b, 0);
    return 0;
}
END
${CC:-cc} -g -fsanitize=thread -o "$tmp/race" "$tmp/race.c" -lpthread && "$tmp/race" >/dev/null 2>&1
[ $? -eq 66 ] || { echo "FAIL  ThreadSanitizer does not report the canary's race"; failed=1; }

for program in test_coroutine test_machine test_transport test_basics test_ledger; do
    try "tsan $program" "$tsan/tests/$program"
done
for backend in $backends; do
    for scenario in ddp_replicas_sgd pp2_fsdp5_gpipe fault_pp_crossed_send_recv; do
        try "tsan $scenario $backend" "$tsan/hpsim" run "$source/scenarios/$scenario.json" --quiet --threads 2 --coroutine "$backend"
    done
done

if ! command -v valgrind >/dev/null; then
    echo "skip  valgrind is not installed"
    exit $failed
fi
valgrind="valgrind -q --error-exitcode=66 --leak-check=full --errors-for-leak-kinds=definite"
try "valgrind test_coroutine" $valgrind "$build/tests/test_coroutine"
for backend in $backends; do
    try "valgrind fault_pp_crossed_send_recv $backend" $valgrind \
        "$build/hpsim" run "$source/scenarios/fault_pp_crossed_send_recv.json" --quiet --threads 2 --coroutine "$backend"
done
for path in avx2 plain; do
    grep -q avx2 /proc/cpuinfo || [ $path = plain ] || continue
    try "valgrind ddp_replicas_sgd $path" $valgrind "$build/hpsim" run "$source/scenarios/ddp_replicas_sgd.json" \
        --quiet --threads 2 --set train.steps=1 --cpu-path $path
done
exit $failed
