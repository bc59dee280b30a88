#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds the package for Cockpit into a directory. Usage: build.sh DIRECTORY. It needs node and npm. What it fetches is what
# package-lock.json names, and is kept beside other caches, by that file; it prints where.
set -euo pipefail
out=${1:?usage: build.sh DIRECTORY}
mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "$(dirname "$0")"
for program in node npm; do
	command -v "$program" >/dev/null || { echo "console: missing: $program, which builds the console (Debian: apt install npm)" >&2; exit 1; }
done
cache=${XDG_CACHE_HOME:-${HOME:?is not set}/.cache}/boxd-console
modules=$cache/$(cat package.json package-lock.json | sha256sum | cut -c1-16)
if [ ! -d "$modules" ]; then
	mkdir -p "$cache"
	fresh=$(mktemp -d "$cache/fetching-XXXXXX")
	trap 'rm -rf "$fresh"' EXIT
	cp package.json package-lock.json .npmrc "$fresh"
	npm ci --prefix "$fresh" >"$fresh/log" 2>&1 || { echo "console: npm cannot fetch what package-lock.json names: $(grep -m 1 -i 'error' "$fresh/log")" >&2; exit 1; }
	mv -T "$fresh" "$modules" 2>/dev/null || [ -d "$modules" ] # another one may have been faster
	trap - EXIT
	rm -rf "$fresh"
fi
# A copy beside the modules: nothing is written into the sources.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -r build.mjs po.mjs index.html manifest.json src po package.json "$work"
ln -s "$modules/node_modules" "$work/node_modules"
node "$work/build.mjs" "$out" >&2
echo "$modules/node_modules"
