#!/bin/sh
# What README.md shows is what hpsim prints: the command it names is run, and every line of the block behind it must
# stand in the output.
# usage: test_readme.sh HPSIM SOURCE_ROOT
hpsim=$(realpath "$1")
cd "$2" || exit 99
work=$(mktemp -d) || exit 99
trap 'rm -rf "$work"' EXIT
command=$(sed -n 's/^Inject a fault: `build\/hpsim \(.*\)`$/\1/p' README.md)
[ -n "$command" ] || { echo 'README.md names no command'; exit 1; }
# shellcheck disable=SC2086
"$hpsim" $command --color never >"$work/out"
[ $? -eq 1 ] || { echo "hpsim $command: exit 1 is due"; exit 1; }
sed -n '/^```$/,/^```$/p' README.md | grep -v -e '^```$' -e '^\.\.\.$' >"$work/shown"
[ "$(wc -l <"$work/shown")" -ge 5 ] || { echo 'README.md shows no output'; exit 1; }
failed=0
while IFS= read -r line; do
    grep -qxF -- "$line" "$work/out" || { echo "not printed: $line"; failed=1; }
done <"$work/shown"
exit $failed
