#!/bin/sh
# Holds softgpu's declarations against NVIDIA's headers of CUDA 12 and 13, fetched with pip. Where they cannot be fetched it says
# so and passes.
#   abi.sh WORKDIR
set -eu
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
work=$(cd "$1" && pwd)
cd "$work"

fetch() { # package version-pattern directory
	[ -d "$3" ] && return 0
	rm -rf "$3.tmp" && mkdir "$3.tmp"
	python3 -m pip download -q --no-deps --disable-pip-version-check -d "$3.tmp" "$1$2" >"$3.log" 2>&1 || return 1
	(cd "$3.tmp" && python3 -m zipfile -e ./*.whl .) && mv "$3.tmp" "$3"
}

# Our headers with every public name prefixed by O_, so that both can be seen at once.
sed -n 's/^#include "softgpu_cuda.h"//; p' "$here/../softgpu_cudart.h" | cat "$here/../softgpu_cuda.h" - |
	sed -E 's/\b(cu[A-Z][A-Za-z0-9_]*|CU[a-z][A-Za-z0-9_]*|CU_[A-Z0-9_]+|CUDA_[A-Z0-9_]+|cuda[A-Z][A-Za-z0-9_]*)\b/O_\1/g' >ours.h

# Every enumerator and every constant.
{
	grep -oE '^	(CU_[A-Z0-9_]+|cuda[A-Z][A-Za-z]+) = ' "$here/../softgpu_cuda.h" "$here/../softgpu_cudart.h" -h
	grep -oE '#define (CU_[A-Z0-9_]+|cuda[A-Z][A-Za-z]+) [^(]' "$here/../softgpu_cuda.h" "$here/../softgpu_cudart.h" -h
	grep -oE 'X\((CUDA_[A-Z0-9_]+|cuda[A-Z][A-Za-z]+), ' "$here/../softgpu_cuda.h" "$here/../softgpu_cudart.h" -h
	grep -oE '(CU_STREAM|CU_EVENT)_[A-Z_]+ = ' "$here/../softgpu_cuda.h"
} | grep -oE '(CU_|CUDA_|cuda)[A-Za-z0-9_]+' | sort -u | sed 's/.*/SAME_VALUE(&)/' >values.inc

# Every function, in the types of NVIDIA's headers: a compiler refuses a second declaration that differs from the first. Left
# out: two that say void for a struct they never look into, and old forms whose plain name those headers give to newer ones.
prototypes() {
	tr '\n' ' ' <"$1" | grep -oE '(CUresult cu|cudaError_t cuda|const char \*cuda)[A-Za-z0-9_]+\([^()]*\);' |
		grep -vE 'cuCtxCreate_v4|cuStreamGetCaptureInfo_v3|cudaDeviceGetAttribute|cuGetProcAddress\(|cuStreamGetCaptureInfo\('
}
{
	prototypes "$here/../softgpu_cuda.h"
	prototypes "$here/../softgpu_cudart.h"
} >prototypes.inc

checked=0
for set in "nvidia-cuda-runtime-cu12: cuda12" "nvidia-cuda-runtime:>=13 cuda13"; do
	package=${set%%:*} rest=${set#*:}
	version=${rest% *} dir=${rest#* }
	if ! fetch "$package" "$version" "$dir"; then
		echo "  SKIP  headers of $dir: cannot fetch $package (see $work/$dir.log)"
		continue
	fi
	include=$(dirname "$(find "$dir" -name cuda.h | head -n 1)")
	# CUDA 13 keeps one header in a package of its own; what it says does not matter here
	mkdir -p "$dir-extra/crt"
	for missing in host_defines.h host_config.h; do
		[ -e "$include/crt/$missing" ] || printf '%s\n' '#define __host__' '#define __device__' '#define __device_builtin__' \
			'#define __cudart_builtin__' '#define CUDARTAPI' '#define CUDARTAPI_CDECL' '#define __builtin_align__(a) __attribute__((aligned(a)))' \
			'#define __align__(a) __attribute__((aligned(a)))' '#define __device_builtin_texture_type__' '#define __device_builtin_surface_type__' \
			'#define CUDART_CB' '#define CUDARTAPI_VISIBILITY' '#define __location__(a)' '#define __specialization_static' '#define __annotate__(a)' >"$dir-extra/crt/$missing"
	done
	${CC:-cc} -std=gnu11 -Wall -Wno-unknown-pragmas -Wno-cpp -I"$include" -I"$dir-extra" -I. -c -o "$dir.o" "$here/abi_test.c"
	echo "  ok    declarations agree with the headers of $dir: $(wc -l <values.inc) values, $(wc -l <prototypes.inc) functions"
	checked=$((checked + 1))
done
# NVML's header is in a package of its own.
sed -E 's/\b(nvml[A-Z][A-Za-z0-9_]*|NVML_[A-Z0-9_]+)\b/O_\1/g' "$here/../softgpu_nvml.h" >ours_nvml.h
grep -oE 'X\(NVML_[A-Z_]+' "$here/../softgpu_nvml.h" | sed 's/X(\(.*\)/SAME_VALUE(\1)/' >values_nvml.inc
tr '\n' ' ' <"$here/../softgpu_nvml.h" | grep -oE '(nvmlReturn_t|const char \*)[ ]?nvml[A-Za-z0-9_]+\([^()]*\);' >prototypes_nvml.inc
for set in "nvidia-nvml-dev-cu12: nvml12" "nvidia-nvml-dev:>=13 nvml13"; do
	package=${set%%:*} rest=${set#*:}
	version=${rest% *} dir=${rest#* }
	if ! fetch "$package" "$version" "$dir"; then
		echo "  SKIP  header of $dir: cannot fetch $package (see $work/$dir.log)"
		continue
	fi
	include=$(dirname "$(find "$dir" -name nvml.h | head -n 1)")
	${CC:-cc} -std=gnu11 -Wall -I"$include" -I. -c -o "$dir.o" "$here/abi_nvml.c"
	echo "  ok    declarations agree with the header of $dir: $(wc -l <values_nvml.inc) values, $(wc -l <prototypes_nvml.inc) functions"
	checked=$((checked + 1))
done
[ $checked -gt 0 ] || echo "  SKIP  no NVIDIA headers: the declarations were not checked"
