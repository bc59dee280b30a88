#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# PID 1 of a host that bare_test.go makes of the directory $1, in mount and PID namespaces of its own.
# It mounts what a host has, runs PREPARE and then the command, and writes to /left what is there after
# the command and was not before: processes, mounts and temporary files. With the last of this the
# kernel ends the namespaces. Usage: enter.sh DIRECTORY PREPARE COMMAND [ARGUMENT...]
set -eu
root=$1 prepare=$2
shift 2

# Programs in boxes pivot_root(2) themselves, which a chroot does not let them: it has to be a mount,
# and the root of this namespace. Its parent must not be shared.
mount --make-rprivate /
mount --bind "$root" "$root"
cd "$root"
mount -t proc proc proc
mount --rbind /sys sys
mount --rbind /dev dev
mkdir -p .host
pivot_root . .host
hash -r
umount -l /.host
rmdir /.host
mount -t tmpfs tmpfs /run

eval "$prepare"
cd /boxd

# processes are those of this namespace but PID 1; it makes none, so that it sees none of its own.
processes() {
	local dir comm
	for dir in /proc/[0-9]*; do
		[ "$dir" != /proc/1 ] || continue
		{ read -r comm <"$dir/comm"; } 2>/dev/null || continue
		echo "process $comm"
	done
}
look() {
	local at mount
	processes
	while read -ra mount; do echo "mount ${mount[4]}"; done </proc/self/mountinfo
	for at in /tmp/* /tmp/.[!.]* /var/tmp/* /run/* /etc/apt/*/* /var/lib/apt/lists/*backports* /var/cache/apt/archives/*.deb; do
		[ ! -e "$at" ] || echo "file $at"
	done
}

look >/before
set +e
trap : HUP INT TERM # those are for the command
setsid --wait "$@" </dev/null
status=$?
# What a signal has reached may take a moment to end; what has not ended then is left.
for _ in {1..50}; do
	processes >/after
	[ -s /after ] || break
	sleep 0.1
done
look >/after
diff --old-line-format= --unchanged-line-format= --new-line-format=%L /before /after >/left
exit $status
