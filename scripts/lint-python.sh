#!/usr/bin/env bash
# Checks the types of the Python package with mypy, for the oldest and a recent Python. Fetches mypy from
# PyPI into build/venv. In a full run (.ci/run) having none is a failure.
set -euo pipefail
cd "$(dirname "$0")/.."

if [[ ! -x build/venv/bin/mypy ]]; then
	if ! { python3 -m venv build/venv && scripts/again.sh build/venv/bin/pip install --quiet --disable-pip-version-check mypy==1.18.2; }; then
		echo "lint-python: types not checked: mypy could not be fetched" >&2
		[[ -z ${EBB_CI:-} ]]
		exit
	fi
fi
for version in 3.9 3.13; do
	(cd python && ../build/venv/bin/mypy --cache-dir ../build/mypy --no-error-summary --python-version "$version")
done
echo "lint-python: types of python/ebb are consistent"
