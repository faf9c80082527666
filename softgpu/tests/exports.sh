#!/bin/sh
# The libraries export what the tables say and nothing else, without version names, and ask for no glibc newer than 2.34.
#   exports.sh LIBDIR
set -eu
here=$(cd "$(dirname "$0")" && pwd)
lib=$1
fail=0

exported() { nm -D --defined-only "$1" | awk '{print $3}' | sort; }

{
	sed -n 's/^CALL(\([^,]*\),.*/\1/p' "$here/../calls.def"
	printf '%s\n' softgpu_set_fault softgpu_call_count softgpu_runtime_call softgpu_view
} | sort >"$lib/want.driver"
{
	sed -n 's/^RUNTIME_CALL(\(.*\))/\1/p' "$here/../runtime_calls.def"
	printf '%s\n' cudaGetLastError cudaPeekAtLastError cudaGetErrorName cudaGetErrorString
} | sort >"$lib/want.runtime"
grep -oE '\bnvml[A-Z][A-Za-z0-9_]*\(' "$here/../softgpu_nvml.h" | tr -d '(' | sort >"$lib/want.nvml"
exported "$lib/libcuda.so.1" | diff "$lib/want.driver" - || fail=1
exported "$lib/libcudart.so.13" | diff "$lib/want.runtime" - || fail=1
exported "$lib/libnvidia-ml.so.1" | diff "$lib/want.nvml" - || fail=1
rm -f "$lib/want.driver" "$lib/want.runtime" "$lib/want.nvml"

for f in "$lib/libcuda.so.1" "$lib/libcudart.so.13" "$lib/libnvidia-ml.so.1"; do
	newest=$(objdump -T "$f" | grep -oE 'GLIBC_2\.[0-9]+' | sed 's/GLIBC_2\.//' | sort -n | tail -n 1)
	if [ "$newest" -gt 34 ]; then
		echo "$f needs GLIBC_2.$newest"
		fail=1
	fi
	if readelf -V "$f" | grep -q 'Version definition'; then
		echo "$f names a version"
		fail=1
	fi
	# calls between its own functions do not pass the table that a preloaded library can change
	if objdump -R "$f" | grep -E ' (cu|cuda|nvml)[A-Z]' | grep -v 'GLOB_DAT\|_64 '; then
		echo "$f calls its own exported functions through the PLT"
		fail=1
	fi
done
[ $fail = 0 ] && echo "  ok    exported symbols"
exit $fail
