#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Looks for known vulnerabilities in what the programs call: test/vuln.sh [FLAG...], flags of govulncheck. GOVULNDB is the
# database, https://vuln.go.dev unless it is set. Status 1: there are some; 2: it could not be looked up.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2
base=${GOVULNDB:-https://vuln.go.dev}

said=$(CGO_ENABLED=0 GOFLAGS=-buildvcs=false go tool -modfile=packaging/tools/vuln.mod govulncheck -db "$base" "$@" ./cmd/... 2>&1)
status=$?
echo "$said"
case $status in
0) ;;
3) exit 1 ;;
*)
	echo "known vulnerabilities: NOT looked up, so that nothing is known: govulncheck ended with status $status; it needs the database at $base" >&2
	exit 2
	;;
esac
