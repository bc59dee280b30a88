#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Puts the fragments of packaging/changelog together, newest first. Usage: changelog.sh FORMAT VERSION TIME,
# with FORMAT text or deb and TIME in seconds.
set -eu
cd "$(dirname "$0")/changelog"
format=$1 version=$2
if [ "$format" = text ]; then
	printf '# boxd %s (%s)\n' "$version" "$(date -u -d "@$3" +%Y-%m-%d)"
	for f in $(ls -r -- *.md); do
		printf '\n'
		cat "$f"
	done
	exit
fi
printf 'boxd (%s) unstable; urgency=medium\n' "$version"
for f in $(ls -r -- *.md); do
	printf '\n'
	# One entry for each fragment: its first line has the bullet, all the rest is indented below.
	fmt -w 74 "$f" | awk 'NF { printf "%s%s\n", n++ ? "    " : "  * ", $0; next } { print "    ." }'
done
printf '\n -- The boxd project <boxd@users.noreply.github.com>  %s\n' "$(LC_ALL=C date -u -d "@$3" '+%a, %d %b %Y %H:%M:%S +0000')"
