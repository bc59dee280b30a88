#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Makes a package of the console. Usage: console.sh FORMAT DIRECTORY, with FORMAT deb or rpm. It prints the path of the package.
# build.sh calls it for the architecture "all". It needs npm, see console/build.sh.
set -euo pipefail
format=${1:?usage: console.sh FORMAT DIRECTORY}
mkdir -p "${2:?usage: console.sh FORMAT DIRECTORY}"
out=$(cd "$2" && pwd)
cd "$(dirname "$0")/.."
VERSION=${VERSION:-$(packaging/version.sh)}
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
STAGE=$(mktemp -d)
trap 'rm -rf "$STAGE"' EXIT
export VERSION SOURCE_DATE_EPOCH STAGE LC_ALL=C TZ=UTC0
umask 022

pages=$STAGE/usr/share/cockpit/boxd doc=$STAGE/usr/share/doc/boxd-cockpit
console/build.sh "$pages" >/dev/null
install -D -m 0644 -t "$STAGE/usr/share/metainfo" console/io.github.boxd_dev.boxd_cockpit.metainfo.xml
mkdir -p "$doc"
mv "$pages/third-party.txt" "$doc/third-party.txt"
if [ "$format" = deb ]; then
	# The licences of what is bundled, in the form of Debian: indented, with dots for empty lines.
	{
		cat packaging/deb/copyright-cockpit
		sed -e 's/^$/./' -e 's/^/ /' "$doc/third-party.txt"
	} >"$doc/copyright"
	packaging/changelog.sh deb "$VERSION" "$SOURCE_DATE_EPOCH" | sed '1s/^boxd /boxd-cockpit /' | gzip -9n >"$doc/changelog.gz"
	rm "$doc/third-party.txt"
	file=$out/boxd-cockpit_${VERSION}_all.deb
else
	install -D -m 0644 -t "$STAGE/usr/share/licenses/boxd-cockpit" LICENSE
	file=$out/boxd-cockpit-$VERSION-1.noarch.rpm
fi
find "$STAGE" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
go tool -modfile=packaging/tools/pkg.mod nfpm package --config packaging/console.yaml --packager "$format" --target "$file" >&2
echo "$file"
