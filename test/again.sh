#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs a command that tests, and once more those of its tests that have failed, alone: what a busy or
# emulated machine has not given a test in time is told from what is broken. A test that fails
# twice has failed. One that passes then is named as unsteady, which is a fault to look into and not
# a reason to hold up a change. A crash, a data race and a time-out of all are failures at once.
# Usage: again.sh COMMAND... FLAG, FLAG being -test.run or -run, to which the names are given.
set -uo pipefail
flag=${*: -1}
command=("${@:1:$#-1}")
out=$(mktemp) || exit 1
trap 'rm -f "$out"' EXIT
"${command[@]}" 2>&1 | tee "$out"
status=${PIPESTATUS[0]}
[ "$status" != 0 ] || exit 0
# Subtests are indented, so these are whole tests.
failed=$(sed -n 's/^--- FAIL: \([A-Za-z0-9_]*\) .*/\1/p' "$out" | sort -u | paste -sd'|')
if [ -z "$failed" ] || grep -q -e '^panic: ' -e '^fatal error: ' -e 'WARNING: DATA RACE' -e '\[build failed\]' -e '\[setup failed\]' "$out"; then
	exit "$status"
fi
printf '== once more: %s\n' "$failed"
"${command[@]}" "$flag" "^($failed)\$" 2>&1 || exit
printf '== unsteady, to be looked into: %s\n' "$failed"
