#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Makes what is published of a version: packages for both architectures, what they are made of, packages of the clients, the
# changes, and checksums of all that. Usage: release.sh DIRECTORY, which is emptied first.
set -euo pipefail
rm -rf "${1:?usage: release.sh DIRECTORY}"
mkdir -p "$1"
out=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
VERSION=${VERSION:-$(packaging/version.sh)}
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export VERSION SOURCE_DATE_EPOCH
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

for arch in amd64 arm64; do
	packaging/programs.sh $arch "$work/$arch"
	for format in deb rpm; do
		PROGRAMS=$work/$arch packaging/build.sh $format $arch "$out"
		PROGRAMS=$work/$arch packaging/fleet.sh $format $arch "$out"
	done
	# The programs say what they are made of.
	go run -modfile=packaging/tools/pkg.mod packaging/sbom.go "$VERSION" "$SOURCE_DATE_EPOCH" "$work/$arch"/* >"$out/boxd-$VERSION-$arch.cdx.json"
done
for format in deb rpm; do
	packaging/build.sh $format all "$out"
done
packaging/clients.sh wheel "$out"
packaging/clients.sh npm "$out"
packaging/changelog.sh text "$VERSION" "$SOURCE_DATE_EPOCH" >"$out/CHANGELOG.md"
(cd "$out" && sha256sum -- * >SHA256SUMS)
