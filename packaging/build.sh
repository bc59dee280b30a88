#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Makes a package. Usage: build.sh FORMAT ARCH DIRECTORY, with FORMAT deb or rpm and ARCH amd64 or arm64, or all for
# the package of the console, boxd-cockpit.
# It prints the path of the package.
#
# The same commit makes the same bytes: times are those of the commit, programs have no paths in them.
# VERSION in the environment is another version than packaging/version.sh says. For PROGRAMS see packaging/programs.sh.
set -euo pipefail
format=${1:?usage: build.sh FORMAT ARCH DIRECTORY} arch=${2:?usage: build.sh FORMAT ARCH DIRECTORY}
mkdir -p "${3:?usage: build.sh FORMAT ARCH DIRECTORY}"
out=$(cd "$3" && pwd)
cd "$(dirname "$0")/.."

case $format-$arch in
deb-amd64 | deb-arm64 | rpm-amd64 | rpm-arm64) ;;
deb-all | rpm-all) exec packaging/console.sh "$format" "$out" ;;
*) echo "build: no package $format of $arch: formats are deb and rpm, architectures amd64, arm64 and, of the console, all" >&2; exit 2 ;;
esac
VERSION=${VERSION:-$(packaging/version.sh)}
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
STAGE=$(mktemp -d)
trap 'rm -rf "$STAGE"' EXIT
export VERSION SOURCE_DATE_EPOCH STAGE ARCH=$arch LC_ALL=C TZ=UTC0
umask 022

usr=$STAGE/usr
put() { # DIRECTORY FILE...: what is not there is left out
	for file in "${@:2}"; do
		[ ! -e "$file" ] || install -D -m 0644 -t "$usr/$1" "$file"
	done
}

mapfile -t programs < <(find cmd -mindepth 1 -maxdepth 1 -type d ! -name boxfleet -printf '%f\n')
packaging/programs.sh "$arch" "$usr/lib/boxd" "${programs[@]}"
mkdir -p "$usr/bin" && mv "$usr/lib/boxd/boxctl" "$usr/bin/"

put lib/systemd/system systemd/units/*
put lib/systemd/system-preset systemd/preset/*
put lib/sysusers.d systemd/sysusers.d/*
put lib/tmpfiles.d systemd/tmpfiles.d/*
put lib/systemd/catalog systemd/catalog/*
put share/boxd packaging/metrics/*
for section in 1 5 7 8; do
	put share/man/man$section packaging/man/*.$section
done
put share/bash-completion/completions packaging/completion/boxctl.bash
put share/fish/vendor_completions.d packaging/completion/boxctl.fish
[ ! -e "$usr/share/bash-completion" ] || mv "$usr/share/bash-completion/completions/boxctl.bash" "$usr/share/bash-completion/completions/boxctl"
put share/doc/boxd README.md SECURITY.md ARCHITECTURE.md
put share/doc/boxd docs/langbot.md
if [ -d docs/guide ]; then put share/doc/boxd/guide docs/guide/*.md; fi
find "$usr" -name '*boxfleet*' -delete # not for every host: packaging/fleet.sh
doc=$usr/share/doc/boxd
packaging/licenses.sh "$usr"/lib/boxd/* "$usr/bin/boxctl" | gzip -9n >"$doc/third-party.txt.gz"

if [ "$format" = deb ]; then
	put share/zsh/vendor-completions packaging/completion/_boxctl
	put share/doc/boxd packaging/deb/copyright
	put share/lintian/overrides packaging/deb/lintian/boxd
	packaging/changelog.sh deb "$VERSION" "$SOURCE_DATE_EPOCH" | gzip -9n >"$doc/changelog.gz"
else
	put share/zsh/site-functions packaging/completion/_boxctl
	put share/licenses/boxd LICENSE
	put share/doc/boxd/selinux packaging/selinux/*
	packaging/changelog.sh text "$VERSION" "$SOURCE_DATE_EPOCH" >"$doc/CHANGELOG.md"
fi
if [ -d "$usr/share/man" ]; then find "$usr/share/man" -type f -exec gzip -9n {} +; fi
packaging/config.sh >"$STAGE/box.toml"
find "$STAGE" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +

file=$out/boxd_${VERSION}_$arch.deb
if [ "$format" = rpm ]; then
	file=$out/boxd-$VERSION-1.$([ "$arch" = amd64 ] && echo x86_64 || echo aarch64).rpm
fi
go tool -modfile=packaging/tools/pkg.mod nfpm package --config packaging/nfpm.yaml --packager "$format" --target "$file" >&2
echo "$file"
