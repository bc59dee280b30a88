#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Puts a node into a directory, with all that it is linked with: that of a machine's distribution is too old, and
# the machine may have older libraries. DIRECTORY/bin/node runs it. Usage: node.sh NODE DIRECTORY
set -euo pipefail
usage='usage: node.sh NODE DIRECTORY'
node=$("${1:?$usage}" -p process.execPath) to=${2:?$usage}
mkdir -p "$to/bin" "$to/lib"
cp -L "$node" "$to/lib/node"
ldd "$node" | grep -o '/[^ ]*' | xargs -r cp -L -t "$to/lib" || true # one that is linked with nothing has no list
cat >"$to/bin/node" <<'NODE'
#!/bin/sh
at=${0%/*}/../lib loader=$at/ld-linux-x86-64.so.2
[ -e "$loader" ] || exec "$at/node" "$@"
exec "$loader" --library-path "$at" "$at/node" "$@"
NODE
chmod 755 "$to/bin/node"
