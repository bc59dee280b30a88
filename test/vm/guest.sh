#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The inside of a machine: takes one item after the other from a queue, and writes what comes of it to a stream. An
# item is a file that holds the directory of a test program below /suite and arguments of it. Machines may share a
# queue: an item is taken by renaming it.
#
# The stream and the queue are in a directory of the host that User-mode Linux lends (hostfs), or, in a machine of
# qemu, a port of virtio and a directory of the suite. Lines that begin with the word of the kernel's command line are
# ours, all others what tests print.
set -u
word=$(sed 's/.*boxd\.word=\([a-z0-9]*\).*/\1/' /proc/cmdline)
out=$(sed -n 's/.*boxd\.out=\([^ ]*\).*/\1/p' /proc/cmdline)
number=$(sed 's/.*boxd\.number=\([0-9]*\).*/\1/' /proc/cmdline)
if [ -n "$out" ]; then
	LIBMOUNT_FORCE_MOUNT2=always mount -t hostfs -o "$out" none /out || exit 1 # by the newer calls it has other options
	# A process that forks with a ring mapped corrupts the page tables of User-mode Linux ("Bad page map", file:[io_uring]); Node.js 22
	# is one. Nothing that is tested needs rings.
	echo 2 >/proc/sys/kernel/io_uring_disabled || exit 1
	exec >>"/out/stream.$number" 2>&1
	journal=/out/journal.$number queue=/out/queue
else
	exec >/dev/virtio-ports/suite 2>&1
	journal=/dev/virtio-ports/journal queue=/suite/queue
fi
tell() { printf '\n%s %s\n' "$word" "$*"; } # behind a line that was not ended, too
(while sleep 20; do tell beat; done) &
beat=$!

# Each "systemctl daemon-reload" runs all generators: not those of what a machine does not have (systemd.generator(7)).
mkdir -p /run/systemd/system-generators
for name in cryptsetup debug gpt-auto hibernate-resume integritysetup rc-local run system-update sysv veritysetup; do
	ln -s /dev/null "/run/systemd/system-generators/systemd-$name-generator"
done
systemctl daemon-reload

cd /suite || exit 1
# shellcheck source=/dev/null
. ./environment
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
taken=$queue/taken.$number
mkdir -p "$taken"

# A test prints a line that begins with BOXD_TEST_CUT to have the power of this machine cut off, with a word of what it has
# promised by then. When the machine is back, it is run again and has that word.
export BOXD_TEST_CUT="$word cut" BOXD_TEST_PROMISED
again=$(sed -n 's/.*boxd\.item=\([^ ]*\).*/\1/p' /proc/cmdline)
promised=$(sed -n 's/.*boxd\.promised=\([^ ]*\).*/\1/p' /proc/cmdline)
[ ! -e "$taken/$again" ] || [ -z "$again" ] || mv "$taken/$again" "$queue/"

# run PHASE does the items of a phase until none is left.
run() {
	local item pkg args
	while :; do
		item=
		for try in "$queue/$1-"*; do
			if mv "$try" "$taken/" 2>/dev/null; then
				item=$taken/${try##*/}
				break
			fi
		done
		[ -n "$item" ] || return
		readarray -t args <"$item"
		pkg=${args[0]}
		unset TMPDIR
		# Only the second disk keeps project quotas.
		[ "$pkg" != test/limits ] || export TMPDIR=/var/lib/boxd
		BOXD_TEST_PROMISED=
		[ "${item##*/}" != "$again" ] || BOXD_TEST_PROMISED=$promised
		tell "begin ${item##*/}"
		(cd "$pkg" && exec ./test "${args[@]:1}")
		tell "end ${item##*/} $?"
	done
}

# The emulator loses, rarely, that one processor has changed code that another one is about to run, and then both trap
# for ever at a break point that is no longer there (seen with qemu 7.2 in enqueue_entity, when the first control group
# got a quota of the processor). So it boots with one processor, takes a quota that stays, and only then gets the other.
if [ -e /sys/devices/system/cpu/cpu1/online ] && [ "$(cat /sys/devices/system/cpu/cpu1/online)" = 0 ]; then
	systemd-run -q --unit=vm-quota -p CPUQuota=190% sleep infinity
	echo 1 >/sys/devices/system/cpu/cpu1/online
fi
status=0
if [ -e selinux ]; then # the module as boxd.te says; dpkg gives files of packages their labels
	[ "$(getenforce)" = Enforcing ] || { echo 'SELinux does not enforce'; status=1; }
	# In /tmp: semodule may not read /suite, which the policy does not know.
	{ cp packaging/selinux/boxd.* /tmp && cd /tmp && checkmodule -M -m -o boxd.mod boxd.te && semodule_package -o boxd.pp -m boxd.mod -f boxd.fc && semodule -i boxd.pp &&
		restorecon -R /var/lib/boxd && cd /suite; } || status=1
fi

if [ -e fleet ]; then # each of the two does the item of its number, and then nothing else is in the queue
	link=$(cd /sys/class/net && ls -d vec0 e* 2>/dev/null | head -n 1)
	{ ip address add "198.51.100.$((number + 1))/24" dev "$link" && ip link set "$link" up; } || { echo 'no network'; status=1; }
	export BOXD_TEST_RESTORE="$word restore" # a line that gives the other machine its power again
	[ $status != 0 ] || run "1-0$number"
elif [ $status = 0 ]; then
	run 1 # installs and purges the packages itself
	# All others run the installed programs, each with a boxd of its own.
	apt-get -qq -y --allow-downgrades install /suite/packages/boxd.deb >/dev/null || status=1
	systemctl stop boxd.socket boxd.service boxd-keeper.service boxd-boxes.service # and boxes that a test has left
	for program in /usr/lib/boxd/* /usr/bin/boxctl; do ln -sf "$program" bin/; done
fi
if [ ! -e fleet ] && [ $status = 0 ]; then
	run 2 # stops the slice of boxes
	# Boxes have control groups here, below an anchor like that of the package.
	systemd-run -q --unit=boxd-test --slice=box.slice -p Type=exec -p Delegate=yes -p TasksMax=infinity -p OOMPolicy=continue /usr/lib/boxd/boxkeeper anchor || status=1
	export BOXD_TEST_CGROUP=box.slice/boxd-test.service
fi
[ -e fleet ] || [ $status != 0 ] || run 3
if [ -e selinux ]; then
	denied=$(journalctl -b --no-pager -o cat | grep -E 'avc: +denied' | grep -E 'comm="(box|probe)|boxd')
	[ -z "$denied" ] || { printf 'denied by SELinux:\n%s\n' "$denied"; status=1; }
fi
kill $beat
tell "all $status"
journalctl -b --no-pager -o short-monotonic >"$journal"
sync
