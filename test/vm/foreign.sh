#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Prepares a system whose packages are extracted and not configured, since this host runs no program of its architecture:
# tells dpkg that they are there, puts in /configure, with which a machine is started once, and makes an initrd that
# starts what init= names. Usage: foreign.sh ROOT ARCH INITRD
set -euo pipefail
root=$1 arch=$2 initrd=$3
dpkg=$root/var/lib/dpkg
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

mkdir -p "$dpkg/info" "$dpkg/updates" "$dpkg/triggers"
echo 1 >"$dpkg/info/format"
for deb in "$root"/var/cache/apt/archives/*.deb; do
	rm -rf "$work/control"
	dpkg-deb -e "$deb" "$work/control"
	name=$(dpkg-deb -f "$deb" Package)
	sed 's/^Package:.*/&\nStatus: install ok unpacked/; /^$/d' "$work/control/control" && echo
	! grep -q '^Multi-Arch: same' "$work/control/control" || name+=:$arch
	rm "$work/control/control"
	dpkg-deb --fsys-tarfile "$deb" | tar -t | sed 's,^\.,,; s,/$,,; s,^$,/.,' >"$dpkg/info/$name.list"
	for file in "$work"/control/*; do
		[ ! -e "$file" ] || cp "$file" "$dpkg/info/$name.${file##*/}"
	done
done >>"$dpkg/status"
rm "$root"/var/cache/apt/archives/*.deb
cat >"$root/configure" <<'CONFIGURE'
#!/bin/bash
export PATH=/usr/sbin:/usr/bin HOME=/root LC_ALL=C DEBIAN_FRONTEND=noninteractive INITRD=No # it has one
mount -t proc proc /proc && mount -t sysfs sysfs /sys && mount -t tmpfs tmpfs /run && mount -t tmpfs tmpfs /tmp
[ -c /dev/null ] || mount -t devtmpfs dev /dev
ln -sf mawk /usr/bin/awk
printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d && chmod +x /usr/sbin/policy-rc.d # starts nothing
ldconfig
depmod
dpkg --configure --force-depends base-passwd base-files && dpkg --configure --force-depends -a && dpkg --audit && printf '\nboxd-vm is configured\n'
rm -f /usr/sbin/policy-rc.d /configure
sync
mount -o remount,ro / || sync
echo o >/proc/sysrq-trigger
sleep infinity
CONFIGURE
chmod +x "$root/configure"

ini=$work/initrd
mkdir -p "$ini/lib" "$ini/dev" "$ini/proc" "$ini/root"
cp "$root/usr/bin/busybox" "$ini/busybox"
cp "$root"/lib/modules/*/kernel/drivers/virtio/virtio{,_ring,_pci*}.ko* "$root"/lib/modules/*/kernel/drivers/block/virtio_blk.ko* "$ini/lib/"
find "$ini" -name '*.xz' -exec unxz {} +
cat >"$ini/init" <<'INIT'
#!/busybox sh
b=/busybox
$b mount -t devtmpfs dev /dev
$b mount -t proc proc /proc
until [ -b /dev/vda ]; do # one needs the other
	for module in /lib/*.ko; do $b insmod "$module" 2>/dev/null; done
done
$b mount -t ext4 /dev/vda /root
init=$($b sed -n 's/.* init=\([^ ]*\).*/\1/p' /proc/cmdline)
$b umount /proc
$b mount -o move /dev /root/dev
exec $b switch_root /root ${init:-/sbin/init}
INIT
chmod +x "$ini/init"
(cd "$ini" && find . | cpio -o -H newc --quiet | gzip) >"$initrd"
