#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Makes a package of boxfleet, boxd-fleet. Usage: fleet.sh FORMAT ARCH DIRECTORY, as build.sh. It prints the path of the package.
set -euo pipefail
format=${1:?usage: fleet.sh FORMAT ARCH DIRECTORY} arch=${2:?usage: fleet.sh FORMAT ARCH DIRECTORY}
mkdir -p "${3:?usage: fleet.sh FORMAT ARCH DIRECTORY}"
out=$(cd "$3" && pwd)
cd "$(dirname "$0")/.."
case $format-$arch in
deb-amd64 | deb-arm64 | rpm-amd64 | rpm-arm64) ;;
*) echo "fleet: no package $format of $arch: formats are deb and rpm, architectures amd64 and arm64" >&2; exit 2 ;;
esac
VERSION=${VERSION:-$(packaging/version.sh)}
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
STAGE=$(mktemp -d)
trap 'rm -rf "$STAGE"' EXIT
export VERSION SOURCE_DATE_EPOCH STAGE ARCH=$arch LC_ALL=C TZ=UTC0
umask 022

usr=$STAGE/usr doc=$STAGE/usr/share/doc/boxd-fleet
put() { # DIRECTORY FILE...
	install -D -m 0644 -t "$usr/$1" "${@:2}"
}
packaging/programs.sh "$arch" "$usr/bin" boxfleet
put lib/systemd/system systemd/units/boxfleet-*.service
put lib/systemd/system-preset systemd/preset/90-boxfleet.preset
put lib/sysusers.d systemd/sysusers.d/boxfleet.conf
put lib/boxd/box.toml.d packaging/fleet/50-boxfleet.toml
put share/boxd-fleet packaging/metrics/boxfleet-*
put share/man/man8 packaging/man/boxfleet.8
put share/doc/boxd-fleet docs/guide/fleet.md
packaging/licenses.sh "$usr/bin/boxfleet" | gzip -9n >"$doc/third-party.txt.gz"
if [ "$format" = deb ]; then
	sed 's,/usr/share/doc/boxd/,/usr/share/doc/boxd-fleet/,' packaging/deb/copyright >"$doc/copyright"
	put share/lintian/overrides packaging/deb/lintian/boxd-fleet
	packaging/changelog.sh deb "$VERSION" "$SOURCE_DATE_EPOCH" | sed '1s/^boxd /boxd-fleet /' | gzip -9n >"$doc/changelog.gz"
	file=$out/boxd-fleet_${VERSION}_$arch.deb
else
	put share/licenses/boxd-fleet LICENSE
	file=$out/boxd-fleet-$VERSION-1.$([ "$arch" = amd64 ] && echo x86_64 || echo aarch64).rpm
fi
find "$usr/share/man" -type f -exec gzip -9n {} +
find "$STAGE" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
go tool -modfile=packaging/tools/pkg.mod nfpm package --config packaging/fleet.yaml --packager "$format" --target "$file" >&2
echo "$file"
