#!/usr/bin/env bash
# Shortens the output of `go test -v` to seeds, skipped tests, the line of each package and the
# number of tests. When anything failed, everything is shown. The exit status is go test's where
# the caller has pipefail set, and 1 when the output tells of a failure.
set -euo pipefail

log=$(mktemp)
trap 'rm -f "$log"' EXIT
cat >"$log"
count() { grep -caE "^ *--- $1:" "$log" || true; } # -a: tests may print any bytes
if grep -qaE '^( *--- FAIL|FAIL|panic:)' "$log"; then
	cat "$log"
	echo "$(count PASS) passed, $(count FAIL) failed, $(count SKIP) skipped"
	exit 1
fi
grep -aE '^ok |seed|--- SKIP' "$log" || true
echo "$(count PASS) passed, $(count FAIL) failed, $(count SKIP) skipped"
