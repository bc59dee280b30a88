#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs a suite in a virtual machine: Debian with a real systemd and cgroup v2, under software
# emulation, so it needs no right but that to run mmdebstrap. Usage: vm.sh FLAVOUR DIRECTORY
#
# FLAVOUR is bookworm (systemd 252, Linux 6.1) or trixie (systemd 257, Linux 6.12); ARCH=arm64 makes it a
# machine of that kind, for which mmdebstrap needs qemu-user-static and its entry in binfmt_misc; SELINUX=1 has it enforce
# the policy of Debian for SELinux. DIRECTORY becomes
# /suite in the machine; its program "run" is started by systemd once the machine is up, what it
# prints is printed here, and its exit status is that of vm.sh. Anything else that goes wrong is 125:
# a machine that does not boot, or says nothing, has not passed anything.
#
# The emulator loses, rarely, that one processor has changed code that another one is about to run, and then both trap
# for ever at a break point that is no longer there (seen with qemu 7.2 in enqueue_entity, when the first control group
# got a quota of the processor). So the machine boots with one processor, takes a quota that stays, and only then gets
# the other one. It also beats like a heart; one that has stopped is started once more, from the beginning.
set -euo pipefail
flavour=${1:?usage: vm.sh FLAVOUR DIRECTORY} arch=${ARCH:-amd64} selinux=${SELINUX:-} suite=$(cd "${2:?usage: vm.sh FLAVOUR DIRECTORY}" && pwd)

# Seconds until a machine is given up. Emulation is slow, so this bounds the broken, not the slow.
patience=${BOXD_VM_PATIENCE:-7200}
cache=${BOXD_VM_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/boxd-vm}

fail() { printf 'vm: %s\n' "$1" >&2; exit 125; }
trap 'fail "line $LINENO failed"' ERR

case $flavour in
bookworm | trixie) ;;
*) fail "flavour is \"$flavour\": allowed are bookworm, trixie" ;;
esac
# cx16=off: without it some versions of qemu emulate a 16-byte compare-and-exchange wrongly, and one
# boot in three dies. pauth-impdef=on: the other way to sign pointers takes half the time of the machine.
name=$flavour
case $arch in
amd64) qemu=(qemu-system-x86_64 -cpu max,cx16=off) console=ttyS0 ;;
arm64) qemu=(qemu-system-aarch64 -M virt -cpu max,pauth-impdef=on) console=ttyAMA0 name+=-arm64 ;;
*) fail "ARCH is \"$arch\": allowed are amd64, arm64" ;;
esac

# What the machine is made of. quota and e2fsprogs are for project quotas, gcc for the programs that
# tests compile in boxes, rpm for the other package. The firewalls are for those that start them: nothing else does.
packages=systemd,systemd-sysv,dbus,udev,iproute2,procps,python3-minimal,python3,ca-certificates,util-linux,mount,quota,e2fsprogs,gcc,libc6-dev,rpm,apparmor,bsdutils,firewalld,ufw,iptables,nftables,linux-image-cloud-$arch
options=
if [ -n "$selinux" ]; then
	name+=-selinux packages+=,selinux-policy-default,policycoreutils,checkpolicy,semodule-utils
	options='security=selinux selinux=1 enforcing=1'
fi

for tool in qemu-system-x86_64:qemu-system-x86 qemu-system-aarch64:qemu-system-arm mmdebstrap:mmdebstrap mke2fs:e2fsprogs; do
	[[ $tool != qemu-* || $tool == "$qemu":* ]] || continue
	command -v "${tool%:*}" >/dev/null || PATH=$PATH:/usr/sbin:/sbin command -v "${tool%:*}" >/dev/null || missing+=" ${tool#*:}"
done
if [ -n "${missing:-}" ]; then
	[ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || fail "please install:$missing"
	echo "vm: installing$missing"
	apt-get -qq update
	DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $missing >/dev/null
fi
PATH=$PATH:/usr/sbin:/sbin

# The bare system is built once for its name, its packages and this recipe.
mkdir -p "$cache"
base=$cache/$name-$(printf '%s\n' "$flavour" "$packages" v2 | sha256sum | cut -c1-16).tar
if [ ! -s "$base" ]; then
	echo "vm: building $name"
	# Under another name until it is whole: an interrupted build is no base.
	mmdebstrap --quiet --format=tar --arch="$arch" --variant=minbase --include="$packages" "$flavour" "$base.$$" || { rm -f "$base.$$"; fail "mmdebstrap $flavour"; }
	mv "$base.$$" "$base"
fi

dir=$(mktemp -d "${TMPDIR:-/tmp}/boxd-vm.XXXXXX")
trap 'rm -rf "$dir"' EXIT
nonce=$(od -An -N8 -tx1 /dev/urandom | tr -d ' \n')

# The machine's disk: the base, the suite, and the unit that runs it.
mkdir "$dir/root"
tar -C "$dir/root" -xf "$base" --numeric-owner
cp -r "$suite" "$dir/root/suite"
mkdir -p "$dir/root/var/lib/boxd"
printf 'boxd-vm\n' >"$dir/root/etc/hostname"
cat >"$dir/root/etc/fstab" <<'FSTAB'
/dev/vda / ext4 defaults 0 0
/dev/vdb /var/lib/boxd ext4 prjquota,nosuid,nodev 0 0
FSTAB
cat >"$dir/root/etc/systemd/system/suite.service" <<UNIT
[Unit]
Description=The suite
After=multi-user.target
[Service]
Type=oneshot
ExecStart=/bin/bash -c 'while sleep 20; do echo; done >/dev/virtio-ports/heart & systemd-run -q --unit=vm-quota -p CPUQuota=190%% sleep infinity; echo 1 >/sys/devices/system/cpu/cpu1/online; cd /suite && ./run; echo "verdict $nonce \$?"; journalctl -b --no-pager -o short-monotonic >/dev/virtio-ports/journal'
ExecStopPost=/usr/bin/systemctl poweroff --force
StandardOutput=file:/dev/virtio-ports/suite
StandardError=inherit
TimeoutStartSec=infinity
TasksMax=infinity
UNIT
mkdir -p "$dir/root/etc/systemd/system/default.target.wants"
ln -s ../suite.service "$dir/root/etc/systemd/system/default.target.wants/suite.service"
for firewall in firewalld ufw; do ln -sf /dev/null "$dir/root/etc/systemd/system/$firewall.service"; done # a test unmasks them
rm -f "$dir/root/etc/resolv.conf"
if [ -n "$selinux" ]; then
	sed -i 's/^SELINUX=.*/SELINUX=enforcing/' "$dir/root/etc/selinux/config"
	# The suite is what an administrator does who has logged in.
	sed -i 's/^Type=oneshot/&\nSELinuxContext=unconfined_u:unconfined_r:unconfined_t:s0/' "$dir/root/etc/systemd/system/suite.service"
	# By descriptors in /proc, and in spite of it: this host keeps no labels (-m). mke2fs takes them over.
	unshare -m bash -c 'mount --bind /proc "$1/proc" && chroot "$1" setfiles -m -F -e /proc /etc/selinux/default/contexts/files/file_contexts /' _ "$dir/root" || fail 'setfiles'
fi
kernel=("$dir"/root/boot/vmlinuz-*) initrd=("$dir"/root/boot/initrd.img-*)
mv "${kernel[0]}" "$dir/vmlinuz" && mv "${initrd[0]}" "$dir/initrd"
mke2fs -qF -t ext4 -d "$dir/root" -L root "$dir/root.img" 4G >/dev/null
rm -rf "$dir/root"
mke2fs -qF -t ext4 -O quota,project -E quotatype=usrquota:grpquota:prjquota "$dir/data.img" 2G >/dev/null

# machine runs it from the beginning, with disks that forget, and leaves its verdict.
machine() {
	: >"$dir/verdict" >"$dir/journal" >"$dir/heart"
	timeout --foreground "$patience" "${qemu[@]}" -accel tcg,thread=multi -smp 2 -m 2048 \
		-nodefaults -display none -monitor none -no-reboot -serial file:"$dir/console" -pidfile "$dir/pid" \
		-kernel "$dir/vmlinuz" -initrd "$dir/initrd" -append "console=$console root=/dev/vda rw panic=-1 maxcpus=1 $options" \
		-drive file="$dir/root.img",if=virtio,format=raw,snapshot=on \
		-drive file="$dir/data.img",if=virtio,format=raw,snapshot=on \
		-device virtio-serial -device virtio-rng-pci \
		-chardev file,id=suite,path=/dev/stdout -device virtserialport,chardev=suite,name=suite \
		-chardev file,id=journal,path="$dir/journal" -device virtserialport,chardev=journal,name=journal \
		-chardev file,id=heart,path="$dir/heart" -device virtserialport,chardev=heart,name=heart \
		</dev/null | while IFS= read -r line; do
		if [[ $line == "verdict $nonce "* ]]; then
			echo "${line##* }" >"$dir/verdict"
		else
			printf '%s\n' "$line"
		fi
	done || true
}

# watch ends the machine whose heart has not beaten for five minutes, boot included.
watch() {
	while sleep 10 && [ -d "$dir" ]; do
		if [ -n "$(find "$dir/heart" -mmin +5)" ] && kill -KILL "$(cat "$dir/pid")" 2>/dev/null; then
			touch "$dir/stopped"
		fi
	done
}

echo "vm: starting $name"
touch "$dir/heart"
watch >/dev/null 2>&1 &
watcher=$!
trap 'kill $watcher; rm -rf "$dir"' EXIT
machine
if [ -e "$dir/stopped" ]; then
	echo 'vm: the machine has stood still for five minutes: once more, from the beginning'
	machine
fi

status=$(cat "$dir/verdict")
if [ "$status" = 0 ]; then
	echo "vm: $name passed"
	exit 0
fi
keep=$(mktemp -d "${TMPDIR:-/tmp}/boxd-vm-failed.XXXXXX")
mv "$dir/console" "$dir/journal" "$keep/"
echo "vm: console and journal of the machine are in $keep" >&2
tail -n 30 "$keep/console" >&2
[ -n "$status" ] || fail 'the machine has ended without a verdict'
exit "$status"
