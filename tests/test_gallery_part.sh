#!/bin/sh
# Each n-th scenario of the gallery, with the default checks.
# usage: test_gallery_part.sh HPSIM FOLDER N
hpsim=$(realpath "$1")
cd "$2" || exit 99
# shellcheck disable=SC2046
"$hpsim" test $(ls ./*.json | awk -v n="$3" 'NR % n == 1 || n == 1') --jobs 2 --checks default
