#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds programs for packages. Usage: programs.sh ARCH DIRECTORY [NAME...], with ARCH amd64 or arm64 and names as below cmd/; all
# without names. VERSION in the environment is theirs.
#
# PROGRAMS in the environment is a directory where this has built them already, which are copied: several packages of one version
# for one architecture need them once.
set -euo pipefail
arch=${1:?usage: programs.sh ARCH DIRECTORY [NAME...]} names=("${@:3}")
mkdir -p "${2:?usage: programs.sh ARCH DIRECTORY [NAME...]}"
out=$(cd "$2" && pwd)
: "${VERSION:?is not set}"
if [ -n "${PROGRAMS:-}" ]; then
	install -m 0755 -t "$out" "${names[@]/#/$PROGRAMS/}"
	exit
fi
cd "$(dirname "$0")/.."
[ ${#names[@]} -gt 0 ] || mapfile -t names < <(find cmd -mindepth 1 -maxdepth 1 -type d -printf "%f\n")
CGO_ENABLED=0 GOOS=linux GOARCH=$arch go build -buildvcs=false -trimpath -ldflags "-s -w -X main.version=$VERSION" -o "$out/" "${names[@]/#/./cmd/}"
