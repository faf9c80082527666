#!/usr/bin/env bash
# Shortens the output of `go test -v` to what matters in long random runs: seeds, failures and
# the line of each package. Everything is shown when a test failed.
set -euo pipefail

log=$(mktemp)
trap 'rm -f "$log"' EXIT
cat >"$log"
if grep -qE '^(--- FAIL|FAIL|panic:)' "$log"; then
	cat "$log"
	exit 1
fi
grep -E '^(ok|---) |seed|^\?|SKIP' "$log" | grep -v 'no test files' || true
