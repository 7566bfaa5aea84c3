#!/bin/sh
# Every fault of the catalogue, injected into the main scenario from the command line, exits 1 and is named with its
# component, or, where it cannot show there, said to be masked; five at least that leave every forward loss of step 0 right are caught at step 0.
# usage: test_main_faults.sh HPSIM SOURCE_ROOT
hpsim=$(realpath "$1")
cd "$2" || exit 99
work=$(mktemp -d) || exit 99
trap 'rm -rf "$work"' EXIT
failed=0 silent_forward=0 passed=0 elsewhere=0
for line in $(sed -n 's/^FAULT(\([a-z0-9_]*\).*/\1/p' scenarios/faults.def); do
    fault=$(echo "$line" | tr _ -)
    case $line in cp_* | ep_* | tp_* | sp_*) # one cp rank, one tp rank and no experts there: shown by its own scenario
        if grep -q "\"fault\": *\"$fault\"" "scenarios/fault_$line.json"; then elsewhere=$((elsewhere + 1)); else
            echo "$fault has no scenario of its own"
            failed=$((failed + 1))
        fi
        continue ;;
    esac
    due=$(sed -n 's/.*\.component = "\([^"]*\)".*/\1/p' "scenarios/faults/$line.c")
    "$hpsim" scenarios/pp4_fsdp2.json --threads 1 --fault "$fault" --set train.steps=2 --json "$work/r.json" --quiet >/dev/null 2>"$work/err"
    status=$?
    # what has no place there, or changes nothing there, is shown by its own scenario, which the gallery runs
    if grep -q '"outcome": *"\(masked\|not_hit\)"' "$work/r.json" 2>/dev/null; then
        if grep -q "\"fault\": *\"$fault\"" "scenarios/fault_$line.json"; then
            elsewhere=$((elsewhere + 1))
        else
            echo "$fault: neither here nor in a scenario of its own"
            failed=$((failed + 1))
        fi
        continue
    fi
    # the diagnosis' component is the first one behind "diagnosis"
    got=$(sed -n '/"diagnosis"/,$p' "$work/r.json" | sed -n 's/.*"component": *"\([^"]*\)".*/\1/p' | head -1)
    step=$(sed -n '/"diagnosis"/,$p' "$work/r.json" | sed -n 's/.*"step": *\([0-9a-z]*\).*/\1/p' | head -1)
    if [ "$status" -ne 1 ] || [ "$got" != "$due" ]; then
        echo "$fault: exit $status, component '$got'; 1 and '$due' are due"
        failed=$((failed + 1))
        continue
    fi
    passed=$((passed + 1))
    # Forward losses are exact where the parallel loss of step 0 is that of one rank, or only its scale is wrong.
    case $fault in
        pp-microbatch-grad-lost | pp-grad-cleared | pp-stage-never-syncs | fsdp-divides-twice | pp-norm-per-stage | pp-tied-embedding-not-reduced)
            [ "$step" = 0 ] && grep -q '"rel_err": *[0-9.]*\(e-1[0-9]\)\?[,}]' "$work/r.json" && silent_forward=$((silent_forward + 1)) ;;
    esac
done
[ "$silent_forward" -ge 5 ] || { echo "only $silent_forward faults with an exact forward loss caught at step 0"; failed=$((failed + 1)); }
[ "$passed" -ge 24 ] || { echo "only $passed faults are live in the main scenario"; failed=$((failed + 1)); }
echo "$passed passed, $elsewhere in their own scenarios, $failed failed"
[ "$failed" -eq 0 ]
