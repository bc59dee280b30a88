#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Prints the licences of what is linked into programs, which have to go where the programs go.
# Usage: licenses.sh PROGRAM...
set -euo pipefail
echo '== The Go programming language'
cat "$(go env GOROOT)/LICENSE"
modules=$(go version -m "$@" | awk '$1 == "dep" { print $2 }' | LC_ALL=C sort -u)
# shellcheck disable=SC2086 # one argument for each
listed=$(go list -m -f '{{.Path}} {{.Version}} {{.Dir}}' $modules)
while read -r module version dir; do
	found=
	for file in "$dir"/{LICENSE,LICENCE,COPYING,NOTICE}*; do
		[ -f "$file" ] || continue
		[ -n "$found" ] || printf '\n== %s %s\n' "$module" "$version"
		found=1
		cat "$file"
	done
	[ -n "$found" ] || { echo "licenses: $module has none" >&2; exit 1; }
done <<<"$listed"
