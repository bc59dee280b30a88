#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs every fuzz target of the module for the time given, one after the other, and fails at the end if one has. Making an input that
# does something new smaller may take a minute, in which nothing else is tried: here it may take two seconds.
set -euo pipefail
cd "$(dirname "$0")/.."

time=${1:-30s}
said=$(mktemp)
trap 'rm -f "$said"' EXIT
failed=()
for dir in $(grep -rl --include='*_test.go' '^func Fuzz' . | xargs -n1 dirname | sort -u); do
	for target in $(grep -ho '^func Fuzz[A-Za-z0-9_]*' "$dir"/*_test.go | sed 's/^func //'); do
		echo "== $dir $target"
		if go test -run '^$' -fuzz "^$target\$" -fuzztime "$time" -fuzzminimizetime 2s "$dir" 2>&1 | tee "$said"; then
			continue
		fi
		# The time may be over while a process of go test has not answered, which it calls a failure too. An input that takes too
		# long looks the same: once more, to see which it was.
		if grep -q '^ *context deadline exceeded$' "$said" && ! grep -q 'Failing input\|panic:' "$said"; then
			echo "== $dir $target: once more, as its time was over before an answer"
			if go test -run '^$' -fuzz "^$target\$" -fuzztime "$time" -fuzzminimizetime 2s "$dir"; then
				continue
			fi
		fi
		failed+=("$dir $target")
	done
done
if ((${#failed[@]} > 0)); then
	printf 'failed: %s\n' "${failed[@]}"
	exit 1
fi
