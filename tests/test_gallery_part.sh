#!/bin/sh
# Each n-th scenario of the gallery, with the default checks.
# usage: test_gallery_part.sh HPSIM FOLDER N
# Forty iterations over 1,024 tokens are left out: denoise_ring4_small.json runs the same code.
hpsim=$(realpath "$1")
cd "$2" || exit 99
# shellcheck disable=SC2046
"$hpsim" test $(ls ./*.json | grep -v /ring_denoise.json | awk -v n="$3" 'NR % n == 1 || n == 1') --jobs 2 --checks default
