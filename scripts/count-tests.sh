#!/usr/bin/env bash
# count-tests.sh NAME: passes the output of C tests on (lines "ok WORDS", "FAIL WORDS", "skip WORDS")
# and ends with their number. The exit status is 1 when one failed or none passed.
set -euo pipefail

exec awk -v name="$1" '
	{ print; fflush() }
	$1 == "ok" { passed++ }
	$1 == "FAIL" { failed++; which = which "\n" $0 }
	$1 == "skip" { skipped++ }
	END {
		if (failed) print "failed:" which
		printf "%s tests: %d passed, %d failed, %d skipped\n", name, passed, failed, skipped
		exit failed > 0 || passed == 0
	}'
