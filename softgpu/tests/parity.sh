#!/bin/sh
# softgpu's answers beside those of a real driver (parity.real, parity_runtime.real, parity_nvml.real), which were recorded on an H200 with driver
# 580 (CUDA 13.0). They must be the same, but for the lines in parity.differs.
#   parity.sh BINDIR LIBDIR
set -eu
here=$(cd "$(dirname "$0")" && pwd)
bin=$1
export LD_LIBRARY_PATH="$2" SOFTGPU_MEM_MB=1024
fail=0
"$bin/parity" >"$bin/parity.soft"
"$bin/parity_runtime" >"$bin/parity_runtime.soft"
"$bin/parity_nvml" >"$bin/parity_nvml.soft"
for what in parity parity_runtime parity_nvml; do
	diff "$here/$what.real" "$bin/$what.soft" | grep '^[<>]' || true
done >"$bin/parity.found"
grep '^[<>]' "$here/parity.differs" | diff - "$bin/parity.found" || fail=1
[ $fail = 0 ] && echo "  ok    answers agree with a real driver's ($(cat "$here"/parity*.real | wc -l) lines)"
exit $fail
