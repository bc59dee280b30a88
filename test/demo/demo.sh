#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Shows boxd at work: a private daemon in a temporary directory, real programs in real boxes, and
# nothing left behind. What the boxes run is the host's own: the Makefile names it to setup.sh.
# Usage: demo.sh DIRECTORY-OF-THE-PROGRAMS
set -euo pipefail

programs=$(cd "$1" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
PATH=$programs:$PATH

bold='' dim='' off=''
if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then bold=$'\e[1m' dim=$'\e[2m' off=$'\e[0m'; fi
title() { printf '\n%s%s%s\n' "$bold" "$1" "$off"; }
show() { # the command a person would type, and what it prints
	printf '%s$ %s%s\n' "$dim" "${*@Q}" "$off" | sed "s/'\([A-Za-z0-9_.\/:=,-]*\)'/\1/g"
	"$@" <&0 & # bash looks at a signal while it waits, and not while a command runs in the foreground
	wait $!
}
fail() { printf 'demo: %s\n' "$1" >&2; exit 1; }

dir=$(mktemp -d /tmp/boxd-demo.XXXXXX)
daemon=''
finish() {
	status=$?
	trap '' EXIT HUP INT TERM
	# shellcheck disable=SC2046 # several processes are several words
	kill $(jobs -p) 2>/dev/null || true # the daemon, and the command that a signal has come upon
	wait
	# The keeper ends after its boxd, and writes until then. The brackets keep grep from finding itself.
	for _ in {1..400}; do
		grep -qas "run=$dir/[r]un" /proc/[0-9]*/cmdline || break
		sleep 0.1
	done
	case $status in
	0) ;;
	129 | 130 | 143) echo 'demo: interrupted' >&2 ;;
	*) echo "demo: failed; boxd's log:" >&2 && cat "$dir/log" >&2 ;;
	esac
	rm -rf "$dir"
	exit "$status"
}
trap finish EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# Somebody other than root owns the project: nothing in a box ever writes as root of the host.
owner=${SUDO_UID:-65534}
chmod 755 "$dir"
cp -r "$here/project" "$dir/project"
chown -R "$owner:$owner" "$dir/project"

# Ids of its own, so that what is left at the end can be told from the boxes of others.
base=$((0x7f000000))

cat >"$dir/box.toml" <<TOML
[daemon]
socket = "$dir/boxd.sock"
socket_group = "root"
state_dir = "$dir/state"
runtime_dir = "$dir/run"
on_stop = "end"
[ids]
base = $base
count = 64
lock = "$dir/ids"
[mounts]
allow = ["$dir/project"]
[limits]
best_effort = ["memory", "cpu", "pids", "workspace"]
TOML
export BOXD_SOCKET=$dir/boxd.sock

title 'A private boxd'
boxd -config "$dir/box.toml" 2>"$dir/log" &
daemon=$!
for _ in $(seq 100); do boxctl status >/dev/null 2>&1 && break; sleep 0.1; done
show boxctl doctor
echo
echo 'Where a line above says best effort, boxd would refuse to start boxes'
echo 'had this configuration not said that this is acceptable.'

cd "$dir/project"
title '1. A Python script reads a CSV file of this directory and writes a report'
show boxctl run --here -- python3 report.py
printf 'on the host, owned by %s:\n' "$(stat -c '%U' report.md)"
sed 's/^/  /' report.md

title '2. A C program is compiled and run in a box that stays'
show boxctl create work
show boxctl exec -c 'cat > primes.c' work <primes.c
show boxctl exec -n work -- gcc -O2 primes.c -o primes
show boxctl exec -n work -- ./primes
show boxctl ls
show boxctl rm work

title '3. A git checkout and its tests'
git -c init.defaultBranch=main init -q repo
cp test_words.py repo/
git -C repo -c user.name=demo -c user.email=demo@example.org add . >/dev/null
git -C repo -c user.name=demo -c user.email=demo@example.org commit -qm 'Add words'
chown -R "$owner:$owner" repo
show boxctl run -v "$dir/project/repo:/mnt/repo:ro" -n \
	-c 'git clone -q /mnt/repo words && cd words && git log --oneline | cat && python3 -m unittest -v 2>&1'

title '4. A hostile script'
show boxctl run --timeout 60s -v "$dir/project:/mnt/project:ro" -n -- python3 /mnt/project/hostile.py

title 'The end'
kill "$daemon" && wait "$daemon" && daemon=''
# A process of the host may end before stat has come to it, which is then no failure.
left=$({ stat -c '%u %n' /proc/[0-9]* 2>/dev/null || true; } | awk -v base=$base '$1 >= base && $1 < base + 64 * 65536')
[ -z "$left" ] || fail "processes of boxes are left: $left"
[ ! -e "$dir/ids" ] || fail 'the lock of the id ranges is left'
[ -z "$(find "$dir/state/sessions" "$dir/state/workspaces" -mindepth 1)" ] || fail 'records or workspaces are left'
! grep -q "$dir" /proc/mounts || fail 'mounts are left'
echo 'boxd has stopped. Left behind: no process, no mount, no file but the log, which goes now.'
