#!/bin/sh
# The recipe of docs/ARCHITECTURE.md: a collective algorithm is one new file and one line. Done here in a copy of the
# tree: a linear all-gather (everyone sends to everyone in turn, like `direct`), which must build, be listed, pass the
# table-driven test and train consistently.
# usage: test_recipe.sh SOURCE_ROOT
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$1"
cp -r meson.build sim collectives model scenarios tools tests "$work"
cd "$work"
# One new file ...
sed 's/all_gather_direct/all_gather_mirror/g' collectives/all_gather_direct.c >collectives/all_gather_mirror.c
# ... and one line.
sed -i 's/^ALGORITHM(all_gather, direct)/&\nALGORITHM(all_gather, mirror)/' collectives/collectives.def
meson setup build -Doptimization=1 >setup.log 2>&1 || { cat setup.log; exit 1; }
ninja -C build -j2 hpsim tests/test_collectives >build.log 2>&1 || { tail -30 build.log; exit 1; }
build/tests/test_collectives
build/hpsim scenarios/pp4_fsdp3.json --quiet --set parallel.collectives.all_gather=mirror --set train.steps=1
build/hpsim validate scenarios/pp4_fsdp3.json --set parallel.collectives.all_gather=mirrors >out 2>&1 && exit 1
grep -q "mirror" out
echo 'recipe: one file, one line'
