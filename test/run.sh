#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs the tests layer by layer and says which have run. A layer that cannot run fails, unless it is
# named as an argument: then it is left out, and that is said too.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

skip=" $* "
ran=() left=() failed=()

# need PROGRAM PACKAGE: a bare machine gets what it lacks, if that is ours to install.
need() {
	command -v "$1" >/dev/null && return
	if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
		echo "installing $2"
		apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $2 >/dev/null && return
	fi
	echo "missing: $1 (package $2)" >&2
	return 1
}

layer() { # NAME COMMAND...
	if [[ $skip == *" $1 "* ]]; then
		left+=("$1")
		return
	fi
	printf '\n== %s\n' "$1"
	local start=$SECONDS
	if "${@:2}"; then
		ran+=("$1 ($((SECONDS - start)) s)")
	else
		failed+=("$1")
	fi
}

# Packages whose tests start boxes; all others need neither root nor a particular kernel, but for
# test/install, test/host and test/limits, which only the virtual machine has everything for.
boxes='./test/boxes/... ./test/sessions/... ./test/images ./test/abuse ./test/survival ./test/network ./test/api ./test/langbot ./test/buckets ./cmd/boxctl'

# Tables, golden files, parsers with their fuzz seeds, and the map of the rooms; with the race detector.
pure() {
	need gcc 'gcc libc6-dev' && need man man-db && need groff groff-base && need mandoc mandoc && need zsh zsh && need fish fish || return
	local all
	all=$(go list ./... | grep -v -e /test/limits -e /test/boxes -e /test/sessions -e /test/images -e /test/abuse -e '/test/survival$' -e '/test/soak$' -e /test/network -e /test/api -e /test/langbot -e /test/buckets -e /test/host -e /test/install -e /test/packages -e '/cmd/boxctl$') || return
	BOXD_TEST_STRICT=1 CGO_ENABLED=1 test/again.sh go test -race -shuffle=on -timeout 10m $all -run
}

# Real boxes by the real programs. boxd has the race detector; boxinit and boxkeeper are as they ship,
# since they make calls on all threads, which a program with cgo cannot (syscall.AllThreadsSyscall).
real() {
	[ "$(id -u)" = 0 ] || { echo 'missing: root, which starts the boxes' >&2; return 1; }
	need gcc 'gcc libc6-dev' && need python3 python3 && need git git && need curl curl && need npm 'npm' && need pip3 'python3-pip' && need mmdebstrap mmdebstrap || return
	local bin
	bin=$(mktemp -d) && chmod 755 "$bin" || return
	CGO_ENABLED=0 go build -modfile=s3.mod -o "$bin/" github.com/versity/versitygw/cmd/versitygw &&
		CGO_ENABLED=0 go build -o "$bin/" ./cmd/... && CGO_ENABLED=1 go build -race -o "$bin/" ./cmd/boxd &&
		BOXD_TEST_BIN=$bin BOXD_TEST_STRICT=1 SOAK=${patience:+1} CGO_ENABLED=0 test/again.sh go test -count=1 -p 1 -shuffle=on -timeout "${patience:-20m}" $boxes -run
	local status=$?
	rm -rf "$bin"
	return $status
}

# The packages, built twice, and read by the tools of the distributions.
packages() {
	need lintian lintian && need rpm rpm && need rpmlint rpmlint && need checkmodule checkpolicy && need semodule_package semodule-utils && need apparmor_parser apparmor || return
	BOXD_TEST_STRICT=1 CGO_ENABLED=0 go test -count=1 -timeout 15m ./test/packages
}

demo() {
	CGO_ENABLED=0 go build -trimpath -o bin/ ./cmd/... && test/demo/demo.sh bin
}

# A host as boxd is made for: systemd, cgroup v2, the kernel of a distribution. Emulation takes twenty times as long,
# so that for every change of the tests that have run before only those run again whose outcome may be another here.
machine() {
	local suite
	suite=$(mktemp -d) || return
	test/vm/suite.sh "$suite" && test/vm/vm.sh "${FLAVOUR:-bookworm}" "$suite"
	local status=$?
	rm -rf "$suite"
	return $status
}

# The soak: too long for every change, so it is run by "make soak" alone.
soak() {
	boxes=./test/soak patience=2h real
}

layer pure pure
layer packages packages
layer boxes real
[ -z "${SOAK:-}" ] || layer soak soak
layer demo demo
layer vm machine

printf '\nran: %s\n' "${ran[*]:-nothing}"
[ -n "${WHOLE:-}" ] || [[ $skip == *" vm "* ]] || echo 'the virtual machine ran the tests of test/vm/everyday; WHOLE=1 is for all'
[ ${#left[@]} = 0 ] || echo "left out, as asked: ${left[*]}"
if [ ${#failed[@]} -gt 0 ]; then
	echo "FAILED: ${failed[*]}"
	exit 1
fi
