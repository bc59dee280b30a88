#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Makes the system of a machine, and prints the directory it is in: root.img, and data.img, whose project quotas are
# on; for qemu also vmlinuz and initrd. Usage: image.sh SYSTEM FOR CACHE
#
# SYSTEM is bookworm (systemd 252) or trixie (systemd 257). FOR is uml or qemu, or selinux: for qemu, and it enforces the
# policy of Debian for SELinux. ARCH=arm64 is a machine of that kind. Where this host runs no program of arm64, the packages
# are extracted here, and an emulated machine configures them at its first start: neither qemu-user nor binfmt_misc is needed.
# A system of the same recipe that is in CACHE is used as it is.
set -euo pipefail
usage='usage: image.sh SYSTEM FOR CACHE'
system=${1:?$usage} for=${2:?$usage} cache=${3:?$usage} arch=${ARCH:-amd64}
here=$(cd "$(dirname "$0")" && pwd)

fail() { printf 'image: %s\n' "$1" >&2; exit 1; }

case $system in
bookworm | trixie) ;;
*) fail "the system is \"$system\": allowed are bookworm, trixie" ;;
esac
case $for in
uml | qemu | selinux) ;;
*) fail "it is for \"$for\": allowed are uml, qemu, selinux" ;;
esac
case $arch in
amd64 | arm64) ;;
*) fail "ARCH is \"$arch\": allowed are amd64, arm64" ;;
esac

# quota, e2fsprogs and xfsprogs are for project quotas, gcc for the programs that tests compile in boxes, rpm for the other
# package. The firewalls are for those that start them: nothing else does.
packages=systemd,systemd-sysv,dbus,udev,iproute2,procps,python3-minimal,python3,ca-certificates,util-linux,mount,quota,e2fsprogs,xfsprogs,gcc,libc6-dev,rpm,apparmor,bsdutils,firewalld,ufw,iptables,nftables,perl
[ "$for" = uml ] || packages+=,linux-image-cloud-$arch
# The console is looked at in a browser, where no list names the tests (selinux) and test/run has a node for it (amd64).
[ "$for" = selinux ] || [ "$arch" != amd64 ] || packages+=,chromium-headless-shell,cockpit
[ "$for" != selinux ] || packages+=,selinux-policy-default,policycoreutils,checkpolicy,semodule-utils
foreign=
[ "$arch" != arm64 ] || [ "$(uname -m)" = aarch64 ] || foreign=1
# What takes long to configure, or is for tests of firewalls and rpm alone, is left out of it.
[ -z "$foreign" ] || packages=$(printf %s "$packages" | sed 's/,rpm\|,firewalld\|,ufw//g'),apt,busybox-static

PATH=$PATH:/usr/sbin:/sbin
mkdir -p "$cache"
name=$system-$for-$arch
base=$cache/$name-$(printf '%s\n' "$system" "$packages" v3 | sha256sum | cut -c1-16).tar
scripts=("$here/image.sh")
[ -z "$foreign" ] || scripts+=("$here/foreign.sh")
out=$cache/$name-$(cat <(printf "%s\n" "$base") "${scripts[@]}" | sha256sum | cut -c1-16)
if [ -d "$out" ]; then
	echo "$out"
	exit
fi
dir=$(mktemp -d "$cache/image.XXXXXX")
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM HUP # and EXIT is run then
free=$(($(df --output=avail -B1M "$dir" | tail -n 1)))
[ "$free" -ge 5120 ] || fail "$cache must have 5120 MiB for a system to be made and has $free MiB: free some, or set BOXD_VM_CACHE to a directory elsewhere"
if [ ! -s "$base" ]; then
	if [ -n "$foreign" ]; then
		how=(--variant=extract --skip=cleanup/apt/cache --hook-dir=/usr/share/mmdebstrap/hooks/merged-usr --include="$packages,?essential")
	else
		how=(--variant=minbase --include="$packages")
	fi
	mmdebstrap --quiet --format=tar --arch="$arch" "${how[@]}" "$system" "$dir/base.tar" >&2 || fail "mmdebstrap $system"
	mv "$dir/base.tar" "$base" # whole, or not at all
fi
mkdir "$dir/root" "$dir/out"
root=$dir/root
tar -C "$root" -xf "$base" --numeric-owner
mkdir -p "$root/var/lib/boxd" "$root/suite" "$root/out"
printf 'boxd-vm\n' >"$root/etc/hostname"
cat >"$root/etc/fstab" <<'FSTAB'
LABEL=boxd-root / ext4 defaults 0 0
LABEL=boxd-data /var/lib/boxd ext4 prjquota,nosuid,nodev 0 0
LABEL=boxd-suite /suite ext4 defaults 0 0
FSTAB
echo force-unsafe-io >"$root/etc/dpkg/dpkg.cfg.d/boxd-vm" # a disk that forgets
cat >"$root/etc/systemd/system/suite.service" <<'UNIT'
[Unit]
Description=The suite
After=multi-user.target
[Service]
Type=oneshot
ExecStart=/bin/bash /suite/guest.sh
ExecStopPost=/usr/bin/systemctl poweroff --force
TimeoutStartSec=infinity
TasksMax=infinity
UNIT
mkdir -p "$root/etc/systemd/system/default.target.wants"
ln -s ../suite.service "$root/etc/systemd/system/default.target.wants/suite.service"
for unit in firewalld.service ufw.service apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer; do
	ln -sf /dev/null "$root/etc/systemd/system/$unit" # a test unmasks the firewalls
done
rm -f "$root/etc/systemd/system/sockets.target.wants/cockpit.socket" # a test starts it
# systemd runs its generators at each reload, which is often here, and starting programs is slow where there is no KVM.
# Only that of fstab has anything to do.
mkdir -p "$root/etc/systemd/system-generators"
for generator in "$root"/{usr/,}lib/systemd/system-generators/*; do
	case $generator in
	*/systemd-fstab-generator | *'*') ;;
	*) ln -sf /dev/null "$root/etc/systemd/system-generators/${generator##*/}" ;;
	esac
done
rm -f "$root/etc/resolv.conf"
if [ "$for" = selinux ]; then
	sed -i 's/^SELINUX=.*/SELINUX=enforcing/' "$root/etc/selinux/config"
	# The suite is what an administrator does who has logged in.
	sed -i 's/^Type=oneshot/&\nSELinuxContext=unconfined_u:unconfined_r:unconfined_t:s0/' "$root/etc/systemd/system/suite.service"
	# By descriptors in /proc, and in spite of it: this host keeps no labels (-m). mke2fs takes them over.
	unshare -m bash -c 'mount --bind /proc "$1/proc" && chroot "$1" setfiles -m -F -e /proc /etc/selinux/default/contexts/files/file_contexts /' _ "$root" || fail 'setfiles'
fi
if [ -n "$foreign" ]; then
	"$here/foreign.sh" "$root" "$arch" "$dir/out/initrd"
	mv "$root"/boot/vmlinuz-* "$dir/out/vmlinuz"
elif [ "$for" != uml ]; then
	mv "$root"/boot/vmlinuz-* "$dir/out/vmlinuz" && mv "$root"/boot/initrd.img-* "$dir/out/initrd"
fi
mke2fs -qF -t ext4 -d "$root" -L boxd-root "$dir/out/root.img" 4G >/dev/null
if [ -n "$foreign" ]; then
	timeout --foreground 3h qemu-system-aarch64 -machine virt -accel tcg -cpu max,pauth-impdef=on -m 2048 -nodefaults -display none -no-reboot -serial stdio \
		-kernel "$dir/out/vmlinuz" -initrd "$dir/out/initrd" -append 'console=ttyAMA0 quiet root=/dev/vda init=/configure panic=-1' \
		-drive "if=virtio,format=raw,file=$dir/out/root.img" </dev/null >"$dir/console" 2>&1 || true
	grep -q '^boxd-vm is configured' "$dir/console" || { tail -n 50 "$dir/console" >&2; fail "the packages of $arch cannot be configured"; }
fi
mke2fs -qF -t ext4 -L boxd-data -O quota,project -E quotatype=usrquota:grpquota:prjquota "$dir/out/data.img" 2G >/dev/null
mv -T "$dir/out" "$out" 2>/dev/null || [ -s "$out/data.img" ] || fail "$out cannot be made" # another run may have made it meanwhile
echo "$out"
