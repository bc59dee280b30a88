#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Puts into a suite what the console is looked at with in a machine: its pages and its package, and what drives the browser,
# which the system of the machine has. Usage: console.sh SUITE. It needs node and npm, see console/build.sh.
set -euo pipefail
suite=${1:?usage: console.sh SUITE}
cd "$(dirname "$0")/../.."
console=$suite/console
mkdir -p "$console/node_modules" "$console/node" "$console/bin"
modules=$(console/build.sh "$console/pages")
cp -r -t "$console/node_modules" "$modules/playwright-core"
package=$(packaging/console.sh deb "$suite/packages")
mv "$package" "$suite/packages/boxd-cockpit.deb"
# The node of this host, with all that it is linked with: that of the machine is too old, and it may have older libraries.
node=$(node -p process.execPath)
cp -L "$node" "$console/node/node"
ldd "$node" | grep -o '/[^ ]*' | xargs -r cp -L -t "$console/node" || true # one that is linked with nothing has no list
cat >"$console/bin/node" <<'NODE'
#!/bin/sh
at=${0%/*}/../node loader=$at/ld-linux-x86-64.so.2
[ -e "$loader" ] || exec "$at/node" "$@"
exec "$loader" --library-path "$at" "$at/node" "$@"
NODE
chmod 755 "$console/bin/node"
