#!/bin/sh
# Every scenario of the gallery that shows a fault is consistent without it: what its checks find is the fault's doing.
# usage: test_no_faults.sh HPSIM SOURCE_ROOT
hpsim=$(realpath "$1")
cd "$2" || exit 99
work=$(mktemp -d) || exit 99
trap 'rm -rf "$work"' EXIT
failed=0 passed=0
for file in scenarios/fault_*.json; do
    if "$hpsim" "$file" --threads 1 --no-faults --quiet >"$work/out" 2>&1 && grep -q '^CONSISTENT' "$work/out"; then
        passed=$((passed + 1))
    else
        echo "$file without its fault:"
        cat "$work/out"
        failed=$((failed + 1))
    fi
done
faults=$(grep -c '^FAULT(' scenarios/faults.def)
[ "$passed" -ge "$faults" ] || { echo "$passed scenarios for $faults faults"; failed=$((failed + 1)); }
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
