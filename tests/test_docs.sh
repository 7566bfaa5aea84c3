#!/bin/sh
# What the pages under docs/ show is what hpsim prints: every block fenced as ```console is run again, command by command
# (lines that begin with "$ hpsim", from the root of the source), and held against the lines behind it. A line "..."
# stands for any number of lines, none too.
# usage: test_docs.sh HPSIM SOURCE_ROOT [PAGE...]
hpsim=$(realpath "$1")
cd "$2" || exit 99
shift 2
[ $# -gt 0 ] || set -- docs/*.md
work=$(mktemp -d) || exit 99
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin" && ln -s "$hpsim" "$work/bin/hpsim" || exit 99
PATH="$work/bin:$PATH"
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
    rm -f "$work"/command.* "$work"/shown.*
    awk -v work="$work" '
        /^```console$/ { inside = 1; next }
        /^```/ { inside = 0; next }
        inside && /^\$ / { n++; name = sprintf("%04d", n); print substr($0, 3) > (work "/command." name); printf "" > (work "/shown." name); next }
        inside && n { print > (work "/shown." name) }' "$page"
    for command in "$work"/command.*; do
        [ -e "$command" ] || continue
        commands=$((commands + 1))
        case $(cat "$command") in
        'hpsim '*) ;;
        *) echo "$page: \"$(cat "$command")\" is no call of hpsim"; failed=1; continue ;;
        esac
        sh "$command" >"$work/printed" 2>&1
        compare "$work/shown.${command##*.}" "$work/printed" || { echo "$page: $(cat "$command")"; failed=1; }
    done
done
[ $commands -gt 0 ] || { echo 'no page shows a command'; exit 1; }
exit $failed
