#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Makes the package of a client. Usage: clients.sh KIND DIRECTORY, with KIND wheel (Python) or npm (TypeScript).
# It prints the path of the package.
#
# The same commit makes the same bytes. The npm package is compiled by the compiler that clients/typescript/package-lock.json
# names, which npm fetches; what is made depends on nothing. VERSION in the environment is another version than
# packaging/version.sh says.
set -euo pipefail
kind=${1:?usage: clients.sh KIND DIRECTORY}
mkdir -p "${2:?usage: clients.sh KIND DIRECTORY}"
out=$(cd "$2" && pwd)
cd "$(dirname "$0")/.."
VERSION=${VERSION:-$(packaging/version.sh)}
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH LC_ALL=C TZ=UTC0
umask 022

case $kind in
wheel)
	python3 -B clients/python/wheel.py "$out" "$VERSION"
	;;
npm)
	stage=$(mktemp -d)
	trap 'rm -rf "$stage"' EXIT
	cp -r clients/typescript/{package.json,package-lock.json,tsconfig.json,README.md,src} LICENSE "$stage"
	cd "$stage"
	chmod -R u=rwX,go=rX .
	npm ci --ignore-scripts --no-audit --no-fund --silent >&2
	npm run --silent build >&2
	node - "$VERSION" <<-'EOT'
		// A version of boxd as npm writes it: what sorts before a release is a pre-release of it.
		const fs = require("node:fs");
		const [, release, tilde, rest] = /^(\d+\.\d+\.\d+)(~?)(.*)$/.exec(process.argv[2]) ?? [];
		if (!release) {
			throw new Error(`version ${process.argv[2]}: must begin with three numbers`);
		}
		const parts = rest.replace(/^git/, "").split(/[^A-Za-z0-9]+/).filter(Boolean).map((part) => (/^0\d/.test(part) || /^\d{15,}$/.test(part) ? "g" + part : part));
		const about = JSON.parse(fs.readFileSync("package.json", "utf8"));
		about.version = release + (parts.length ? (tilde ? "-dev." : "+") + parts.join(".") : "");
		delete about.devDependencies;
		delete about.scripts;
		fs.writeFileSync("package.json", JSON.stringify(about, null, 2) + "\n");
	EOT
	echo "$out/$(npm pack --silent --ignore-scripts --pack-destination "$out")"
	;;
*)
	echo "clients: no package of kind $kind: kinds are wheel and npm" >&2
	exit 2
	;;
esac
