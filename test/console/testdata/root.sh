#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Serves Cockpit in a copy of this host's system, over an overlay, with the package of the console installed by dpkg, and a person who can
# log in by PAM. Usage: root.sh DIRECTORY PACKAGE SOCKET BOXCTL PORT, in namespaces of its own. All of it ends with them.
set -euo pipefail
dir=$1 package=$2 socket=$3 boxctl=$4 port=$5
root=$dir/root
mount -t tmpfs -o mode=0755 tmpfs "$dir"
mkdir "$dir/upper" "$dir/work" "$root"
mount -t overlay -o "lowerdir=/,upperdir=$dir/upper,workdir=$dir/work" overlay "$root"
mount --rbind /dev "$root/dev"
mount --rbind /sys "$root/sys"
mount -t proc proc "$root/proc"
mount -t tmpfs -o mode=0755 tmpfs "$root/run"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mkdir "$root/run/boxd"
touch "$root/run/boxd/boxd.sock"
mount --bind "$socket" "$root/run/boxd/boxd.sock"
install -m 0755 "$boxctl" "$root/usr/bin/boxctl"
install -m 0644 "$package" "$root/tmp/boxd-cockpit.deb"
in_root() { chroot "$root" "$@"; }
in_root dpkg --install /tmp/boxd-cockpit.deb
in_root useradd --create-home --shell /bin/sh --groups nogroup anna
echo 'anna:geheim, ü' | in_root chpasswd
exec chroot "$root" setpriv --reuid cockpit-wsinstance --regid cockpit-wsinstance --clear-groups \
	/usr/lib/cockpit/cockpit-ws --no-tls --port "$port" --address 127.0.0.1
