#!/bin/sh
# What the pages under docs/ show is what hpsim prints: every block fenced as ```console is run again, command by command
# (lines that begin with "$ hpsim"), and held against the lines behind it. A line "..." stands for any number of lines, none
# too; cc and sed may stand in the place of hpsim. A block fenced as ```json NAME, ```csv NAME or ```c NAME is the file NAME from there on. Commands run in a folder that has scenarios/ and these
# files. docs/scenario.md is what hpsim schema --markdown prints, docs/symptoms.md names every
# fault, docs/low_loss.md every scenario cause_* and defect_* beside its component, and docs/experts.md the states of the report's
# program with PyTorch's figures.
# usage: test_docs.sh HPSIM SOURCE_ROOT [PAGE...]
hpsim=$(realpath "$1")
cd "$2" || exit 99
shift 2
[ $# -gt 0 ] || set -- docs/*.md
work=$(mktemp -d) || exit 99
trap 'rm -rf "$work"' EXIT
root=$(pwd)
mkdir "$work/bin" && ln -s "$hpsim" "$work/bin/hpsim" || exit 99
PATH="$work/bin:$PATH"
# As if hpsim were installed: pkg-config finds its header.
printf 'Name: hpsim\nDescription: from the tree\nVersion: 0\nCflags: -I%s\n' "$root/model/plugin" >"$work/bin/hpsim.pc"
export PKG_CONFIG_PATH="$work/bin"
failed=0
commands=0

# wanted, printed: each wanted line in its place.
compare() {
    awk -v wanted="$1" '
        function missing(line) { print "    not printed there: " line; bad = 1; exit }
        BEGIN { while ((getline line < wanted) > 0) want[++count] = line; at = 1; open = 0 }
        {
            if (bad) next
            if (at <= count && want[at] == "...") { open = 1; at++ }
            if (at <= count && want[at] == $0) { at++; open = 0; next }
            if (!open) { print "    printed, but not shown: " $0; if (at <= count) missing(want[at]); bad = 1; exit }
        }
        END {
            if (bad) exit 1
            while (at <= count && want[at] == "...") { at++; open = 1 }
            if (at <= count) { print "    not printed there: " want[at]; exit 1 }
        }' "$2"
}

for page in "$@"; do
    rm -rf "$work"/step.* "$work"/shown.* "$work/run"
    mkdir "$work/run" && ln -s "$root/scenarios" "$work/run/scenarios" || exit 99
    awk -v work="$work" '
        /^```console$/ { inside = 1; next }
        /^```(json|csv|c) [A-Za-z0-9_]+\.(json|csv|c)$/ { n++; name = sprintf("%04d", n); file = work "/step." name; print "file " $2 > file; filling = 1; next }
        /^```/ { inside = 0; filling = 0; next }
        filling { print > file }
        inside && /^\$ / { n++; name = sprintf("%04d", n); print "command " substr($0, 3) > (work "/step." name); printf "" > (work "/shown." name); next }
        inside && n { print > (work "/shown." name) }' "$page"
    for step in "$work"/step.*; do
        [ -e "$step" ] || continue
        read -r kind rest <"$step"
        if [ "$kind" = file ]; then
            tail -n +2 "$step" >"$work/run/$rest"
            continue
        fi
        commands=$((commands + 1))
        case $rest in
        'hpsim '* | 'cc '* | 'sed -i '*) ;;
        *) echo "$page: \"$rest\" is no call of hpsim"; failed=1; continue ;;
        esac
        sed 's/^command //' "$step" >"$work/command"
        (cd "$work/run" && sh "$work/command") >"$work/printed" 2>&1
        compare "$work/shown.${step##*.}" "$work/printed" || { echo "$page: $rest"; failed=1; }
    done
done

hpsim schema --markdown >"$work/keys"
cmp -s "$work/keys" docs/scenario.md || { echo 'docs/scenario.md is not what hpsim schema --markdown prints'; failed=1; }
hpsim faults --json "$work/faults"
sed -n 's/^ *"name":[ \t]*"\(.*\)",*$/\1/p' "$work/faults" >"$work/names"
[ -s "$work/names" ] || { echo 'no fault has a name'; failed=1; }
while read -r name; do
    grep -qF "\`$name\`" docs/symptoms.md || { echo "docs/symptoms.md does not name $name"; failed=1; }
done <"$work/names"
for scenario in scenarios/cause_*.json scenarios/defect_*.json; do
    name=$(basename "$scenario" .json)
    component=$(sed -n 's/.*"component": "\([^"]*\)".*/\1/p' "$scenario")
    grep -F "\`$name\`" docs/low_loss.md | grep -qF "\`$component\`" || { echo "docs/low_loss.md does not name $name with its component $component"; failed=1; }
done
for number in 01 02 03 04 05 06 07 08 09 10 11 12 13 14; do
    ls scenarios/cause_${number}_*.json >/dev/null 2>&1 || { echo "cause $number has no scenario"; failed=1; }
done
for number in 1 2 3 4 5 6 9 10; do
    ls scenarios/defect_h${number}_*.json >/dev/null 2>&1 || { echo "defect H$number has no scenario"; failed=1; }
done
# The states of docs/experts.md: PyTorch's loss and error of the logits on rank 0.
awk '$2 == 0 && NF > 9 && $1 != "right" { printf "%s %.5f %#.3g\n", $1, $3, $4 }' tests/goldens/pangu_states.txt >"$work/states"
[ "$(wc -l <"$work/states")" -eq 6 ] || { echo 'tests/goldens/pangu_states.txt: six states but the right one are due'; failed=1; }
while read -r name loss error; do
    grep -F "| \`$name\` |" docs/experts.md | grep -qF "| $loss | $error |" || { echo "docs/experts.md does not show $name with loss $loss and error $error"; failed=1; }
done <"$work/states"
[ $commands -gt 0 ] || { echo 'no page shows a command'; exit 1; }
exit $failed
