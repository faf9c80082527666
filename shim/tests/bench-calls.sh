#!/bin/bash
# Measures what the hooks add to calls of the driver's: bench-calls.sh [CALLS]
# Prints nanoseconds of each call or pair of calls, and what libebb.so adds to them. Over a driver
# that does nothing:
#   outside  no memory is managed
#   hooks    in a region, with an engine that does next to nothing
# and over softgpu, with the real engine and all that it does:
#   beside   other memory of the process is managed
#   managed  in a region
# A name with a + is of two calls, as are capture (begin, end) and stream (create, destroy); by hand are the
# eight that managed alloc+free consists of. No test.
set -euo pipefail
calls=${1:-20000}
here=$(cd "$(dirname "$0")" && pwd)
dist=$(cd "$here/../../dist/lib" && pwd)
plain=$(cd "$here/../../build/shim" && pwd)/plain
[ -e "$plain/libcuda.so.1" ] || make -s -C "$here/.." programs
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
${CC:-cc} -std=c11 -D_GNU_SOURCE -O2 -Wall -Wextra -o "$work/bench" "$here/bench_calls.c"
mkdir "$work/nothing"
ln -s "$plain/libcuda.so.1" "$work/nothing/libcuda.so.1"

run() { # run DRIVER LIBRARY ENGINE ARGUMENT...: times the calls
	local driver=$1 library=$2 engine=$3
	shift 3
	env LD_LIBRARY_PATH="$driver" LD_PRELOAD="$library" EBB_ENGINE="$engine" SOFTGPU_NODE="bench-$$" \
		"$work/bench" "$calls" "$@"
}
run "$work/nothing" "" "" >"$work/a"
run "$work/nothing" "$dist/libebb.so" "" >"$work/b"
run "$work/nothing" "$dist/libebb.so" "$plain/libebb-engine.so" region >"$work/c"
run "$dist/softgpu" "" "" >"$work/d"
run "$dist/softgpu" "$dist/libebb.so" "" region beside >"$work/e"
run "$dist/softgpu" "$dist/libebb.so" "" region >"$work/f"
paste -d' ' "$work"/[a-f] | awk '
function more(with, without) { return with < 0 || without < 0 ? "-" : sprintf("%+d", with - without) }
BEGIN {
	form = "%-16s %8s %8s %8s %10s %8s %8s\n"
	printf form, "ns", "nothing", "outside", "hooks", "softgpu", "beside", "managed"
}
{
	took[$1] = $12
	if ($1 == "by-hand") { by_hand = $8; next }
	printf form, $1, $2 < 0 ? "-" : $2, more($4, $2), more($6, $2), $8, more($10, $8), more($12, $8)
}
END {
	printf "managed alloc+free: %d more than its calls of the driver by hand (%d)\n", took["alloc+free"] - by_hand, by_hand
}'
