#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds Linux as a program of user space (User-mode Linux, see Documentation/virt/uml of the kernel), for hosts
# without KVM, and prints its path. Usage: kernel.sh CACHE
#
# The source is Debian's, of the backports to trixie: calls of the system by seccomp, which this kernel has since 6.16,
# take half the time of those by ptrace. Debian's own package of it lacks nf_tables of family inet, PSI and Landlock.
# kernel.config is what differs from the kernel's defconfig. A kernel that is in CACHE is used as it is.
set -euo pipefail
cache=${1:?usage: kernel.sh CACHE}
here=$(cd "$(dirname "$0")" && pwd)
source=linux-source-7.2

fail() { printf 'kernel: %s\n' "$1" >&2; exit 1; }

[ "$(uname -m)" = x86_64 ] || fail "User-mode Linux is not there for $(uname -m)"
mkdir -p "$cache"
kernel=$cache/linux-uml-$(cat "$here/kernel.sh" "$here/kernel.config" | sha256sum | cut -c1-16)
if [ -x "$kernel" ]; then
	echo "$kernel"
	exit
fi

dir=$(mktemp -d "$cache/kernel.XXXXXX")
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM HUP # and EXIT is run then
free=$(($(df --output=avail -B1M "$dir" | tail -n 1)))
[ "$free" -ge 4096 ] || fail "$cache must have 4096 MiB for a kernel to be built and has $free MiB: free some, or set BOXD_VM_CACHE to a directory elsewhere"
archive=http://deb.debian.org/debian
mmdebstrap --quiet --variant=extract --include="$source" trixie "$dir/source" "deb $archive trixie main" "deb $archive trixie-backports main" >&2 ||
	mmdebstrap --quiet --variant=extract --include=linux-source/trixie-backports trixie "$dir/source" "deb $archive trixie main" "deb $archive trixie-backports main" >&2 ||
	fail "Debian's package $source cannot be had"
mkdir "$dir/linux"
tar -C "$dir/linux" --strip-components=1 -xf "$dir"/source/usr/src/linux-source-*.tar.xz
rm -rf "$dir/source"
cd "$dir/linux"
# The network driver is said to need libraries where it runs, which forbids a static link. It needs them only to look up
# names, and its transport here has none.
sed -i '/select MAY_HAVE_RUNTIME_DEPS/d' arch/um/drivers/Kconfig
export ARCH=um
{
	make -s defconfig
	scripts/kconfig/merge_config.sh -m .config "$here/kernel.config"
	make -s olddefconfig
	make -s -j"$(nproc)" linux
} >"$dir/log" 2>&1 || { tail -n 20 "$dir/log" >&2; fail "$source cannot be built"; }
strip linux
mv linux "$kernel" # whole, or not at all
echo "$kernel"
