#!/bin/sh
# The plain kernels, their table and the coroutines compile for aarch64 (what has no cross compiler skips):
# apt install gcc-aarch64-linux-gnu. usage: test_aarch64.sh SOURCE_ROOT
cd "$1" || exit 99
cc=aarch64-linux-gnu-gcc
command -v $cc >/dev/null || { echo "aarch64: no $cc"; exit 77; }
flags='-std=gnu17 -Wall -Wextra -Wno-unused-parameter -Werror -ffp-contract=off -fno-math-errno -I. -fsyntax-only'
failed=0
for file in model/kernels/*.c; do
    for real in float double; do
        $cc $flags -DVARIANT_REAL=$real -DVARIANT_CPU=plain "$file" || { echo "aarch64: $file ($real)"; failed=1; }
    done
done
for file in model/ops.c model/openblas.c sim/coroutine.c sim/coroutines/*.c sim/hash.c sim/format.c; do
    $cc $flags "$file" || { echo "aarch64: $file"; failed=1; }
done
exit $failed
