#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Puts into a suite what the console is looked at with in a machine: its pages and its package, and what drives the browser,
# which the system of the machine has; its node is that of node.sh. Usage: console.sh SUITE. It needs node and npm, see
# console/build.sh.
set -euo pipefail
suite=${1:?usage: console.sh SUITE}
cd "$(dirname "$0")/../.."
console=$suite/console
mkdir -p "$console/node_modules"
modules=$(console/build.sh "$console/pages")
cp -r -t "$console/node_modules" "$modules/playwright-core"
package=$(packaging/console.sh deb "$suite/packages")
mv "$package" "$suite/packages/boxd-cockpit.deb"
