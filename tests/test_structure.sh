#!/bin/sh
# The house as it is drawn: includes never point upward, and nothing that changes from run to run gets near a result.
# usage: test_structure.sh SOURCE_ROOT
cd "$1" || exit 99
failed=0
fail() { echo "structure: $*"; failed=1; }

below() { # below FLOOR ALLOWED...: FLOOR may include from ALLOWED only
    floor=$1; shift
    allowed=$(echo "$*" | tr ' ' '|')
    bad=$(grep -rnE '^#include "' --include='*.[ch]' --include='*.def' "$floor" | grep -v '^tools/plugins/' | grep -vE "#include \"($allowed)/")
    [ -z "$bad" ] || fail "$floor includes from above: $bad"
}
below sim sim
below collectives sim collectives
below model sim collectives model
below scenarios sim collectives model scenarios
below tools sim collectives model scenarios tools

# A plug-in knows hpsim.h alone.
bad=$(grep -rn '^#include' tools/plugins --include='*.c' | grep -vE '<(hpsim|math)\.h>|"ring_right.c"')
[ -z "$bad" ] || fail "a plug-in includes more than hpsim.h: $bad"

banned() { # banned WHY PATTERN FOLDERS... (lines that end in "allowed: why" and comments are let through)
    why=$1 pattern=$2; shift 2
    bad=$(grep -rnE "$pattern" --include='*.[ch]' "$@" | grep -vE '^[^:]*:[0-9]*: *(\*|/\*|//)')
    [ -z "$bad" ] || fail "$why: $bad"
}
banned 'random numbers that no seed makes' '\b(rand|srand|random|drand48|arc4random|getrandom)\(' sim collectives model scenarios
banned 'a clock' '\b(time|gettimeofday|clock|uv_now|uv_hrtime|clock_gettime)\(' sim collectives scenarios
clocks=$(grep -rn 'clock_gettime(' --include='*.c' model | grep -cv 'model/train.c')
[ "$clocks" -eq 0 ] || fail 'a clock in model/ outside train.c'
banned 'a pointer in a text' '%p' sim collectives model scenarios tools
banned 'numbers parsed by the locale' '\b(atof|atoi|atol)\(' sim collectives model scenarios tools

# One line and one file a member: no line without its file, no file without its line.
pair() { # pair DEF PREFIX FOLDER SUFFIXLESS-NAME-PATTERN
    for name in $(sed -n "s/^$2(\([a-z0-9_]*\).*/\1/p" "$1"); do
        [ -f "$3/$name.c" ] || fail "$1 names $name, $3/$name.c is missing"
    done
    for file in "$3"/*.c; do
        name=$(basename "$file" .c)
        grep -q "^$2($name\b" "$1" || fail "$file has no line in $1"
    done
}
pair scenarios/faults.def FAULT scenarios/faults
pair scenarios/checks.def CHECK scenarios/checks
pair sim/coroutines.def COROUTINE sim/coroutines
pair model/schedules.def SCHEDULE model/schedules
pair tools/commands.def COMMAND tools/commands
for name in $(sed -n 's/^FAULT(\([a-z0-9_]*\).*/\1/p' scenarios/faults.def); do
    [ -f "scenarios/fault_$name.json" ] || fail "fault $name has no scenario"
done
[ $failed -eq 0 ] && echo 'structure: as drawn'
exit $failed
