#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs every test on every ground that a release has to stand on, which takes hours: failures are listed at the end, and
# the rest is run nevertheless. "make test-all" sees that the host has what it needs.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

failed=()
step() { # NAME COMMAND...
	printf '\n==== %s\n' "$1"
	"${@:2}" || failed+=("$1")
}
machine() { go run ./test/run -skip 'pure packages boxes demo' "$@"; }

trap 'exit 130' INT TERM HUP # the command that runs has the signal too
step 'this host, and all in the machine too' go run ./test/run -whole
step 'Debian 13 in the machine' machine -whole -system trixie
step 'SELinux in the machine' machine -selinux
step 'a fleet of two machines' go run ./test/run -fleet
step 'an emulated processor' machine -ground emulation
step 'an emulated arm64' machine -arch arm64
step 'a bare host' env BOXD_TEST_STRICT=1 CGO_ENABLED=0 go test -count=1 -v -timeout 3h ./test/bare
step 'fuzzing' test/fuzz.sh 30s
step 'known vulnerabilities' test/vuln.sh

if [ ${#failed[@]} -gt 0 ]; then
	printf '\nFAILED:'
	printf ' %s;' "${failed[@]}"
	echo
	exit 1
fi
