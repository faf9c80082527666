#!/usr/bin/env bash
# Builds dist/ebb-VERSION-py3-none-manylinux_2_34_ARCH.whl: the Python package with the libraries of
# dist/lib and the command dist/bin/ebb in it. Needs those built, python3 with venv, and setuptools from PyPI (kept in build/venv); status 3
# when that cannot be had.
#
# A wheel holds no links. Both libraries therefore lie in the folder whose name launchers look for in
# LD_PRELOAD, where libebb.so finds its engine beside it.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
stage=build/wheel

if ! build/venv/bin/python3 -c 'import setuptools.command.bdist_wheel' 2>/dev/null; then
	if ! { "$python" -m venv build/venv && scripts/again.sh build/venv/bin/pip install --quiet --disable-pip-version-check 'setuptools>=70.1'; }; then
		echo "build-wheel: no wheel: setuptools 70.1 or later could not be fetched" >&2
		exit 3
	fi
fi

rm -rf "$stage"
mkdir -p "$stage/ebb/lib/torch_memory_saver" "$stage/ebb/bin"
cp python/pyproject.toml python/setup.py python/README.md LICENSE "$stage/"
cp python/ebb/*.py python/ebb/py.typed "$stage/ebb/"
install -m 0755 dist/lib/libebb.so dist/lib/libebb-engine.so "$stage/ebb/lib/torch_memory_saver/"
install -m 0755 dist/bin/ebb "$stage/ebb/bin/"
# The dates of the commit, so that one commit makes one wheel.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || echo 315532800)
export SOURCE_DATE_EPOCH
build/venv/bin/pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir "$stage/out" "$stage"
rm -f dist/ebb-*.whl
mv "$stage"/out/ebb-*.whl dist/
rm -rf "$stage"
echo dist/ebb-*.whl
