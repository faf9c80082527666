#!/usr/bin/env bash
# Runs every fuzz target of the project, one after the other, for FUZZTIME each (default 5s). Arguments, if
# any, are the packages: scripts/fuzz.sh ./internal/launch. What a target finds lies in testdata/fuzz beside
# it, and from then on is tested by `go test`.
set -euo pipefail

time=${FUZZTIME:-5s}
packages=("$@")
[[ ${#packages[@]} -gt 0 ]] || packages=(./...)

# Workers are killed at their end, in the midst of a test, and leave its directories.
TMPDIR=$(mktemp -d)
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT
log=$TMPDIR/log
failed=0
targets=0
while read -r package; do
	for target in $(go test -list '^Fuzz' "$package" | grep '^Fuzz' || true); do
		targets=$((targets + 1))
		if go test -run '^$' -fuzz "^$target\$" -fuzztime "$time" "$package" >"$log" 2>&1; then
			echo "ok    $package $target"
		# Go reports its own deadline as a failure when a worker is slow to notice it.
		elif grep -q 'context deadline exceeded' "$log" && ! grep -qE 'Failing input|panic|fatal error|build failed' "$log"; then
			echo "ok    $package $target (a worker ended late)"
		else
			echo "FAIL  $package $target"
			cat "$log"
			failed=$((failed + 1))
		fi
	done
done < <(grep -rl --include='*_test.go' '^func Fuzz' . | xargs -n 1 dirname | sort -u | xargs go list | grep -Fxf <(go list "${packages[@]}"))
echo "$targets fuzz targets for $time each, $failed failed"
[[ $failed -eq 0 && $targets -gt 0 ]]
