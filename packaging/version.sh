#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Prints the version of this tree: that of the tag it is, or one that sorts before the next release and
# after all that came earlier, in dpkg and in rpm. A tree with changes of its own says so.
set -eu
cd "$(dirname "$0")/.."
next=0.1.0
git rev-parse --git-dir >/dev/null 2>&1 || { echo "$next~devel"; exit; }
dirty=
git diff --quiet HEAD 2>/dev/null || dirty=.dirty
if tag=$(git describe --tags --exact-match --match 'v[0-9]*' 2>/dev/null); then
	version=${tag#v}
else
	version=$next~git$(TZ=UTC0 git log -1 --format=%cd --date=format-local:%Y%m%d%H%M%S).$(git log -1 --format=%h --abbrev=12)
fi
echo "$version$dirty"
