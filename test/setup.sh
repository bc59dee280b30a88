#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Sees that a host has what is to be done on it needs. What is missing is installed on Debian and its
# relatives; elsewhere, or where that fails, one sentence says what is missing.
#
#   setup.sh WANT... [-- COMMAND [ARGUMENT...]]
#
# COMMAND is run once all is there, without input, and ends with all it has started when this is
# interrupted. A WANT is one of
#
#   root             we are root
#   disk:MIB         MIB are free where Go keeps modules and what it has built
#   tmp:MIB          MIB are free in TMPDIR
#   usr:MIB          MIB are free in /usr, if a package is to be installed
#   go               a Go that builds go.mod's module, and its modules. COMMAND finds it first in PATH
#   PROGRAM:PACKAGE  PROGRAM is in PATH or, if it begins with /, exists. PACKAGE is the one of Debian,
#                    or several joined by +, as in gcc:gcc+libc6-dev
#
# With DISK=0 in the environment nothing is asked about space. Where nothing is missing, nothing is
# printed. It is bash and what Debian calls essential and nothing more, since it comes before all else.
set -uo pipefail
here=$(cd "$(dirname "$0")/.." && pwd) || exit 1

# Go fetches the toolchain that go.mod names since 1.21 (go.dev/doc/toolchain).
oldest=1.21

say() { printf 'setup: %s\n' "$1" >&2; }
fail() { say "$1"; exit "${2:-1}"; }

dir='' dpkg='' state='nothing has been changed'
trap '[ -z "$dir" ] || rm -rf "$dir"' EXIT

# A signal ends what runs, at once: an update and a download can be begun again. Only dpkg is waited
# for, which would leave packages half unpacked.
stop() { # NUMBER
	trap '' HUP INT TERM
	local pid
	[ -z "$state" ] || say "interrupted; $state"
	# The first time, it may not have a process group of its own yet.
	[ -n "$dpkg" ] || for pid in $(jobs -p); do kill -TERM "$pid" "-$pid" 2>/dev/null; done
	wait
	exit $((128 + $1))
}
trap 'stop 1' HUP
trap 'stop 2' INT
trap 'stop 15' TERM

# run COMMAND...: in the background, since bash looks at signals only after a command in the foreground
# has ended, and in a session of its own: ctrl-c of the terminal is for us, and what it has started can
# be ended with it. apt-get writes dpkg's errors to its output.
run() {
	setsid "$@" </dev/null >"$dir/log" 2>&1 &
	wait $!
}

# reason is what the command has said to its failure: a full disk, or what apt-get marks as an error, or
# what comes first. On a full disk there may be no room for that.
reason() {
	local line
	line=$(grep -i -m 1 'no space left on device' "$dir/log" || grep -m 1 '^E: ' "$dir/log" || grep -v -e '^go: downloading ' -e '^W: ' -e '^$' "$dir/log" | head -n 1)
	[ -n "$line" ] || line="${dir%/*} has $(($(df --output=avail -B1M "$dir" | tail -n 1))) MiB left"
	printf '%s' "${line#E: }" | tr -s '[:space:]' ' '
}

temporary() {
	[ -z "$dir" ] || return 0
	dir=$(mktemp -d 2>/dev/null) || fail "missing: a place for temporary files, since ${TMPDIR:-/tmp} takes none: free space there, or set TMPDIR to another directory"
	chmod 755 "$dir" # apt downloads as the user _apt
}

# lacks LIST NAME adds a name to a list, once.
lacks() {
	local -n list=$1
	[[ " ${list[*]} " == *" $2 "* ]] || list+=("$2")
}

at_least() { [ "$(printf '%s\n' "$1" "$2" | sort -V | head -n 1)" = "$2" ]; }

# existing DIRECTORY: it, or what of its path there is.
existing() {
	local at=$1
	while [ ! -d "$at" ]; do at=$(dirname "$at"); done
	printf '%s' "$at"
}

# find_go sets go to the first Go that is as new as go.mod wants it, or else to the first that can fetch
# such a one, or to nothing. The PATH that sudo leaves lacks /usr/local/go/bin; Debian's Go of a version
# is in no PATH. Away from go.mod and local, a Go says what it is itself.
find_go() {
	local where=() at found
	go=''
	IFS=: read -ra where <<<"$PATH"
	while read -r at; do where+=("$at"); done < <(printf '%s\n' /usr/local/go/bin /usr/lib/go-1.*/bin | sort -rV)
	for at in "${where[@]}"; do
		found=$(cd / && GOFLAGS='' GOTOOLCHAIN=local "$at/go" env GOVERSION 2>/dev/null)
		[[ $found =~ go(1\.[0-9]+(\.[0-9]+)?) ]] || continue
		found=${BASH_REMATCH[1]}
		if at_least "$found" "$wanted"; then
			go=$at/go
			return
		fi
		[ -n "$go" ] || ! at_least "$found" "$oldest" || go=$at/go
	done
}

# check_caches: Go can write what it fetches and builds.
check_caches() {
	local at
	caches=("${GOCACHE:-${XDG_CACHE_HOME:-${HOME:-?}/.cache}}" "${GOMODCACHE:-${GOPATH:-${HOME:-?}/go}}")
	[ -z "$go" ] || mapfile -t caches < <(cd / && GOFLAGS='' "$go" env GOCACHE GOMODCACHE 2>/dev/null)
	for at in "${caches[@]}"; do
		[[ $at == /* ]] || fail "missing: a place for what Go fetches and builds, since HOME is not set: set it, or GOCACHE and GOMODCACHE"
		at=$(existing "$at")
		[ -w "$at" ] || fail "missing: a place for what Go fetches and builds, since $at cannot be written: set HOME, or GOCACHE and GOMODCACHE, to directories that can"
	done
}

# check_space: what is needed in one file system adds up. The caches have equal parts of theirs.
check_space() {
	local -A need=() of=()
	local mib at mount free
	while read -r mib at; do
		[ "$mib" != 0 ] || continue
		at=$(existing "$at") mount=$(df --output=target "$at" | tail -n 1)
		need[$mount]=$((${need[$mount]:-0} + mib))
		[[ " ${of[$mount]:-} " == *" $at "* ]] || of[$mount]+="${of[$mount]:+ and }$at"
	done < <(printf '%s\n' "$tmp_mib ${TMPDIR:-/tmp}" "$usr_mib /usr" "${caches[@]/#/$((disk_mib / 2)) }")
	for mount in "${!need[@]}"; do
		free=$(($(df --output=avail -B1M "$mount" | tail -n 1)))
		[ "$free" -ge "${need[$mount]}" ] || fail "missing: disk space, of which ${of[$mount]} must have ${need[$mount]} MiB and has $free MiB: free some, or set TMPDIR, GOCACHE or GOMODCACHE to directories elsewhere, or DISK=0 to try all the same"
	done
}

# use_backports has apt look at the backports of this release too. It does so with sources and lists of
# our own besides those of the host, whose apt knows as little of backports afterwards as before, however
# this ends. They are on the mirror that the host has its release from.
use_backports() {
	local suite mirror
	# shellcheck source=/dev/null
	suite=$({ . /etc/os-release && echo "${VERSION_CODENAME:?}-backports"; } 2>/dev/null) || return
	mirror=$(apt-get -qq --print-uris download base-files 2>/dev/null) || return
	mirror=${mirror#\'}
	say "looking for Go in $suite"
	mkdir -p "$dir/sources" "$dir/lists/partial"
	find /etc/apt/sources.list.d -mindepth 1 -exec ln -s -t "$dir/sources" {} +
	echo "deb ${mirror%%/pool/*} $suite main" >"$dir/sources/$suite.list"
	apt+=(-o Dir::Etc::sourceparts="$dir/sources" -o Dir::State::lists="$dir/lists" -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache=)
	run apt-get "${apt[@]}" -o APT::Update::Error-Mode=any update || unreached="; the lists of $suite cannot be fetched: $(reason)"
}

# packaged_go adds the package of the newest Go to those that are lacking. It is one of a version, and not
# golang-go: what is the host's "go" stays that, if it has an older one.
packaged_go() {
	local newest
	newest=$(apt-cache "${apt[@]}" search --names-only '^golang-1\.[0-9]+-go$' 2>/dev/null | cut -d ' ' -f 1 | sort -V | tail -n 1)
	[[ $newest =~ ^golang-(.*)-go$ ]] && at_least "${BASH_REMATCH[1]}" "$oldest" && lack+=("$newest")
}

# install_missing installs the packages that are lacking, and a Go if that is.
install_missing() {
	local what="${programs[*]}" names="${lack[*]}" unreached='' apt
	[ -z "$lack_go" ] || what+="${what:+ }Go" names+="${names:+ }golang"
	command -v apt-get >/dev/null || fail "missing: $what; install them, as here only you can (in Debian the packages are $names, and Go is to be $oldest or later)"
	[ "$(id -u)" = 0 ] || fail "missing: $what; root can have them installed, by the same command with sudo (the packages are $names)"
	temporary
	state="missing: $what"

	# Packages go to a directory of our own, so that none is left in that of apt.
	mkdir -p "$dir/archives/partial"
	apt=(-qq -o Dir::Cache::archives="$dir/archives" -o DPkg::Lock::Timeout=120)
	say "installing $names"
	# Always, since lists may be older than the archive, which then lacks what they name. That not all of
	# the host's archives can be reached matters only if something is not found or fetched then.
	run apt-get "${apt[@]}" -o APT::Update::Error-Mode=any update || unreached="; the lists of packages cannot be fetched: $(reason)"
	[ -z "$lack_go" ] || packaged_go || { use_backports && packaged_go; } ||
		fail "missing: $what${unreached:-; the package archive has no Go since $oldest: install one in /usr/local/go as https://go.dev/doc/install says}"
	export DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1
	apt+=(install -y --no-install-recommends)
	run apt-get "${apt[@]}" --download-only "${lack[@]}" || fail "missing: $what; ${lack[*]} cannot be downloaded: $(reason)$unreached"
	dpkg=1 state='dpkg ends what it has begun'
	run apt-get "${apt[@]}" --no-download "${lack[@]}" || fail "missing: $what; ${lack[*]} cannot be installed: $(reason)"
	dpkg='' state="what was missing is installed: $what"
}

# equip_go: what go.mod names, the toolchain and the modules, is there or fetched. A program needs no
# module that none of its packages comes from, so that without a network those may be missing.
equip_go() {
	local modules=("$go" -C "$here" mod download)
	run env GOPROXY=off "${modules[@]}" || run env GOPROXY=off "$go" -C "$here" list -deps -test ./... || {
		state="missing: what go.mod names"
		say "fetching what go.mod names: modules, and Go $wanted if $go is older"
		run "${modules[@]}" || fail "missing: what go.mod names; $go cannot fetch it: $(reason)"
	}
}

wants_root='' wants_go='' disk_mib=0 tmp_mib=0 usr_mib=0
lack=() lack_go='' programs=() caches=() go=''
while [ $# -gt 0 ] && [ "$1" != -- ]; do
	case $1 in
	root) wants_root=1 ;;
	go) wants_go=1 ;;
	disk:*) disk_mib=${1#*:} ;;
	tmp:*) tmp_mib=${1#*:} ;;
	usr:*) usr_mib=${1#*:} ;;
	*:*)
		if [[ $1 == /* ]]; then [ -e "${1%%:*}" ]; else PATH=$PATH:/usr/sbin:/sbin command -v "${1%%:*}" >/dev/null; fi ||
			{ lacks programs "${1%%:*}" && IFS=+ read -ra more <<<"${1#*:}" && for package in "${more[@]}"; do lacks lack "$package"; done; }
		;;
	*) fail "unknown want \"$1\": allowed are root, disk:MIB, tmp:MIB, usr:MIB, go and PROGRAM:PACKAGE" 2 ;;
	esac
	shift
done
[ $# = 0 ] || shift

if [ -n "$wants_root" ] && [ "$(id -u)" != 0 ]; then
	command -v sudo >/dev/null && fail 'missing: root, which starts boxes: use sudo'
	fail 'missing: root, which starts boxes, and sudo, which makes one root: use su'
fi
if [ -n "$wants_go" ]; then
	wanted=$(sed -n 's/^toolchain go//p' "$here/go.mod")
	[ -n "$wanted" ] || wanted=$(sed -n 's/^go //p' "$here/go.mod")
	find_go
	[ -n "$go" ] || lack_go=1
	check_caches
fi
[ -n "${lack[*]}$lack_go" ] || usr_mib=0
[ "${DISK:-}" = 0 ] || check_space
[ -z "${lack[*]}$lack_go" ] || install_missing
if [ -n "$wants_go" ]; then
	[ -n "$go" ] || find_go
	[ -n "$go" ] || fail "missing: Go $wanted; its package is installed and has no /usr/lib/go-1.N/bin/go"
	temporary
	equip_go
	[ "$(command -v go)" = "$go" ] || export PATH="${go%/*}:$PATH"
fi
[ $# -gt 0 ] || exit 0
# A go that is interrupted early leaves its temporary files.
[ -z "$dir" ] || export GOTMPDIR=${GOTMPDIR:-$dir}
state='' # the command says itself what it was at
setsid "$@" </dev/null &
wait $!
