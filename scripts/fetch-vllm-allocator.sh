#!/usr/bin/env bash
# Puts vLLM's sleep allocator into build/wheels/vllm: three small files of the wheel on PyPI, for the part
# vllm of scripts/test-gpu.sh. pip fetches the whole wheel (340 MB) for them, once.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
version=0.33.0
want=(vllm/cumem_allocator.abi3.so vllm/device_allocator/cumem.py vllm/device_allocator/alloc_conf.py)

if [[ $(cat build/wheels/vllm/version 2>/dev/null) == "$version" ]]; then exit 0; fi
mkdir -p build/wheels
work=$(mktemp -d build/wheels/fetch-XXXXXX)
trap 'rm -rf "$work"' EXIT
"$python" -m pip download --quiet --no-deps --only-binary=:all: --platform manylinux_2_28_x86_64 --python-version 3.12 \
	--dest "$work" "vllm==$version"
"$python" - "$work" "${want[@]}" <<'PYTHON'
import glob
import sys
import zipfile

work, *names = sys.argv[1:]
(wheel,) = glob.glob(f"{work}/vllm-*.whl")
with zipfile.ZipFile(wheel) as archive:
    for name in names:
        archive.extract(name, f"{work}/vllm")
PYTHON
echo "$version" >"$work/vllm/version"
rm -rf build/wheels/vllm
mv "$work/vllm" build/wheels/vllm
