#!/bin/sh
# Runs all test programs of a build: run.sh BINDIR LIBDIR. Each makes its nodes in a directory that is removed afterwards.
set -u
here=$(cd "$(dirname "$0")" && pwd)
bin=$1 lib=$2
failed=
XDG_RUNTIME_DIR=$(mktemp -d)
export XDG_RUNTIME_DIR
trap 'rm -rf "$XDG_RUNTIME_DIR"' EXIT
unset SOFTGPU_NODE SOFTGPU_FAULT SOFTGPU_LATENCY_US SOFTGPU_MEM_MB SOFTGPU_DEVICES SOFTGPU_GRANULARITY_KB SOFTGPU_LINK_GBPS \
	SOFTGPU_GPUDIRECT_RDMA

run() {
	echo "$1"
	shift
	"$@" || failed="$failed $1"
}

for t in "$bin"/*_test; do
	run "$(basename "$t")" "$t"
done
if [ "${SANITIZED:-}" = "" ]; then # these look at the libraries as they are shipped
	run exports sh "$here/exports.sh" "$lib"
	run parity sh "$here/parity.sh" "$bin" "$lib"
	run abi sh "$here/abi.sh" "$bin/abi"
fi
[ -z "$failed" ] || { echo "FAILED:$failed"; exit 1; }
