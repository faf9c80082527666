#!/usr/bin/env bash
# Tests ebb on this machine's GPU. Needs what `make build` puts into dist/ (build it anywhere),
# Python with PyTorch, and a directory on a real disk; no Go, no compiler (with nvcc one check more is
# made), no network.
#
#   scripts/test-gpu.sh              everything
#   scripts/test-gpu.sh PART...      some of it: train content children python expandable vllm tms
#                                    fingerprint throughput optim megatron swap bench demo, and reference, which
#                                    needs more
#
# The parts tms and reference need the published torch_memory_saver, the part vllm the sleep allocator
# of the published vLLM, the part megatron megatron-core, in build/wheels. Where there is a network, make gpu-wheels
# fetches them; take that folder along.
#
# The part reference runs torch_memory_saver's own tests, with its own library and with ebb. They are no
# part of this project: EBB_REFERENCE_TESTS is the folder test/ of that project's repository, at the
# version of the wheel. Needs pytest; pytest-xdist and pytest-timeout are used where installed.
#
# GPUTEST_DISK  directory for backup files, default build/test-gpu; up to 15 GB are written
# PYTHON         the Python that has PyTorch, default python3
# OUT            existing directory for the logs, the report and the table; default: not kept
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
python=${PYTHON:-python3}
tests=$root/test/gpu
preload=$root/dist/lib/torch_memory_saver/libebb.so

for need in dist/bin/ebb dist/lib/libebb.so dist/lib/libebb-engine.so "${preload#"$root"/}"; do
	[[ -e $need ]] || { echo "test-gpu: $need is missing (make build)" >&2; exit 2; }
done
if ! machine=$("$python" -c '
import platform, torch
print(f"{torch.cuda.get_device_name(0)}, PyTorch {torch.__version__}, Python {platform.python_version()}, Linux {platform.release()}")' 2>&1); then
	echo "test-gpu: PyTorch finds no GPU: ${machine##*$'\n'}" >&2
	exit 2
fi
driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1 || true)

mkdir -p "${GPUTEST_DISK:-build/test-gpu}"
disk=$(mktemp -d "$(cd "${GPUTEST_DISK:-build/test-gpu}" && pwd)/run-XXXXXX")
logs=$(mktemp -d)
export GPUTEST_REPORT=$logs/report
export PYTHONPATH=$root/python:$root/test/gpu:$root/test/python PYTHONDONTWRITEBYTECODE=1
export CUBLAS_WORKSPACE_CONFIG=:4096:8 # PyTorch's deterministic mode wants it
: >"$GPUTEST_REPORT"

finish() {
	if [[ -n ${OUT:-} && -d $OUT ]]; then
		cp "$GPUTEST_REPORT" "$OUT/test-gpu.report"
		if [[ -e $logs/bench.json ]]; then cp "$logs/bench.json" "$OUT/bench.json"; fi
		for log in "$logs"/*.log; do [[ -e $log ]] && printf '=== %s\n' "$(basename "$log" .log)" && cat "$log"; done >"$OUT/test-gpu.log" || true
	fi
	rm -rf "$logs" "$disk"
}
trap finish EXIT

pass() { echo "PASS $1" | tee -a "$GPUTEST_REPORT"; }
fail() { echo "FAIL $1" | tee -a "$GPUTEST_REPORT"; }

# saw NAME SECONDS COMMAND...: records how a command ends: status, and its error or what it said last. No check.
saw() {
	local name=$1 seconds=$2 log text got=0
	log=$logs/${name//[ ,]/-}.log
	shift 2
	timeout --kill-after=15 "$seconds" "$@" >"$log" 2>&1 </dev/null || got=$?
	text=$(grep -m 1 -E 'what\(\)|Error|ASSERT' "$log" || grep -v '^$' "$log" | tail -n 1 || true)
	echo "SAW $name: status $got; ${text:0:200}" | tee -a "$GPUTEST_REPORT"
}

# part NAME SECONDS STATUS COMMAND...: runs a command, which must end with STATUS within SECONDS.
part() {
	local name=$1 seconds=$2 want=$3 log begin=$SECONDS said got=0
	log=$logs/${name//[ ,]/-}.log
	said=$(wc -l <"$GPUTEST_REPORT")
	shift 3
	timeout --kill-after=15 "$seconds" "$@" >"$log" 2>&1 </dev/null || got=$?
	tail -n +$((said + 1)) "$GPUTEST_REPORT"
	if [[ $got -ne $want ]]; then
		tail -n 25 "$log"
		if [[ $got -eq 124 || ($got -eq 137 && $((SECONDS - begin)) -ge $seconds) ]]; then
			fail "$name: not done after $seconds s"
		elif ! tail -n +$((said + 1)) "$GPUTEST_REPORT" | grep -q '^FAIL '; then
			fail "$name: ended with status $got, want $want"
		fi
	fi
	echo "---- $name: $((SECONDS - begin)) s"
}

# Prefixes of a command. hooked: under the preloaded library, as an outside launcher sets it up;
# what is not in a region is not managed. hooked_disk: everything is managed. run_*: `ebb run`.
hooked=(env LD_PRELOAD="$preload" TMS_DISK_BACKUP_DIR="$disk/hooked" TMS_DISK_BACKUP_CHUNK_MB=256)
hooked_disk=("${hooked[@]}" TMS_INIT_ENABLE=1 TMS_INIT_ENABLE_DISK_BACKUP=1)
run_disk=(dist/bin/ebb run --nproc-per-node 1 --device cuda --offload-train --offload-train-target disk
	--offload-train-disk-dir "$disk/run" --offload-train-disk-chunk-mb 256 --)
run_cpu=(dist/bin/ebb run --nproc-per-node 1 --device cuda --offload-train --offload-train-target cpu --)

no_files_left() {
	local left
	left=$(find "$disk" -name '*.bak' | wc -l)
	if [[ $left -eq 0 ]]; then pass "$1: no backup file left"; else fail "$1: $left backup files left"; fi
	find "$disk" -name '*.bak' -delete
}

same_losses() {
	if [[ -s $logs/$2.losses ]] && cmp -s "$logs/reference.losses" "$logs/$2.losses"; then
		pass "$1: $(wc -l <"$logs/$2.losses") losses identical to the last bit"
	else
		fail "$1: losses differ from the run without ebb"
	fi
}

train_parts() {
	local train=("$python" "$tests/train.py")
	part "train reference" 90 0 "${train[@]}" --losses "$logs/reference.losses"

	part "train disk, ebb run" 120 0 "${run_disk[@]}" "${train[@]}" --name "ebb run, disk" --park-every 6 --losses "$logs/run-disk.losses"
	same_losses "ebb run, disk" run-disk
	no_files_left "ebb run, disk"

	part "train disk, preload" 120 0 "${hooked_disk[@]}" "${train[@]}" --name "preload, disk" --park-every 6 --end exit-paused --losses "$logs/hooked-disk.losses"
	same_losses "preload, disk" hooked-disk
	no_files_left "preload, disk, exit while paused"

	part "train cpu, ebb run" 120 0 "${run_cpu[@]}" "${train[@]}" --name "ebb run, cpu" --park-every 6 --losses "$logs/run-cpu.losses"
	same_losses "ebb run, cpu" run-cpu

	part "train disk, exception" 90 1 "${run_disk[@]}" "${train[@]}" --name "exception" --steps 2 --park-every 2 --end exception --losses "$logs/exception.losses"
	no_files_left "exception while paused"
	part "train disk, SIGKILL" 90 137 "${run_disk[@]}" "${train[@]}" --name "SIGKILL" --steps 2 --park-every 2 --end kill --losses "$logs/kill.losses"
	if grep -qE 'paused with [1-9][0-9]* files' "$logs/train-disk--SIGKILL.log"; then
		no_files_left "SIGKILL while paused"
	else
		fail "SIGKILL while paused: the rank did not get that far"
	fi
}

content_parts() {
	part "content, broken context" 60 0 "${hooked[@]}" "$python" "$tests/sticky.py"
	find "$disk" -name '*.bak' -delete # it ends without its exit handlers
	part "content" 100 0 "${hooked[@]}" "$python" "$tests/content.py"
	no_files_left "content"
}

children_parts() {
	part "children" 90 0 "${hooked[@]}" "$python" "$tests/children.py"
	no_files_left "children"
}

python_parts() {
	part "python" 150 0 "${hooked[@]}" "$python" "$tests/python_api.py"
	no_files_left "python"
	part "python, pluggable allocator" 150 0 env TMS_DISK_BACKUP_DIR="$disk/pluggable" TMS_DISK_BACKUP_CHUNK_MB=256 "$python" "$tests/python_api.py" pluggable
	no_files_left "python, pluggable allocator"
}

# Both names of the setting, and both ways to manage: regions, and the whole process.
expandable_parts() {
	local on=PYTORCH_ALLOC_CONF=expandable_segments:True old=PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
	local train=("$python" "$tests/train.py" --steps 8) binary=-
	part "expandable regions" 90 0 env "$on" "${hooked[@]}" "$python" "$tests/expandable.py" regions
	no_files_left "expandable regions"
	part "expandable process" 120 0 env "$old,garbage_collection_threshold:0.6" TMS_INIT_ENABLE=1 TMS_INIT_ENABLE_CPU_BACKUP=1 \
		TMS_RETAIN_CPU_BACKUP=1 "${hooked[@]}" "$python" "$tests/expandable.py" process
	part "cudaMallocAsync" 60 0 env PYTORCH_ALLOC_CONF=backend:cudaMallocAsync TMS_INIT_ENABLE=1 TMS_INIT_ENABLE_CPU_BACKUP=1 \
		"${hooked[@]}" "$python" "$tests/expandable.py" async
	part "expandable train reference" 60 0 env "$on" "${train[@]}" --losses "$logs/reference.losses"
	part "expandable train disk" 90 0 env "$on" "${run_disk[@]}" "${train[@]}" --name "expandable, ebb run, disk" --park-every 4 --losses "$logs/expandable-disk.losses"
	same_losses "expandable, ebb run, disk" expandable-disk
	no_files_left "expandable, ebb run, disk"
	part "expandable train cpu" 90 0 env "$old" "${run_cpu[@]}" "${train[@]}" --name "expandable, ebb run, cpu" --park-every 4 --losses "$logs/expandable-cpu.losses"
	same_losses "expandable, ebb run, cpu" expandable-cpu
	if command -v nvcc >/dev/null && nvcc -cudart static -I abi -o "$logs/static_runtime" "$tests/static_runtime.cu" -ldl >"$logs/nvcc.log" 2>&1; then
		binary=$logs/static_runtime
	fi
	part "others" 90 0 "${hooked[@]}" "$python" "$tests/others.py" "$binary"
}

vllm_parts() {
	if [[ ! -e build/wheels/vllm/vllm/cumem_allocator.abi3.so ]]; then
		fail "vllm: no sleep allocator in build/wheels/vllm (make gpu-wheels)"
		return
	fi
	part "vllm" 60 0 "${hooked[@]}" "$python" "$tests/vllm_sleep.py" build/wheels/vllm
	part "vllm, whole process managed" 60 0 env TMS_INIT_ENABLE=1 TMS_INIT_ENABLE_CPU_BACKUP=1 "${hooked[@]}" "$python" "$tests/vllm_sleep.py" build/wheels/vllm
	no_files_left "vllm"
}

fingerprint_parts() {
	part "fingerprint" 60 0 "$python" "$tests/fingerprint.py" --figures
}

# The rows that a few minutes allow; ebb bench by itself measures all, on more bytes.
bench_parts() {
	local status=0 log=$logs/bench.log begin=$SECONDS
	mkdir -p "$disk/bench"
	timeout --kill-after=15 240 dist/bin/ebb bench --disk-dir "$disk/bench" --gib "${GPUTEST_BENCH_GIB:-2}" --rounds "${GPUTEST_BENCH_ROUNDS:-5}" \
		--rows "${GPUTEST_BENCH_ROWS:-pause,resume,checks,cpu,adamw,unchanged}" --json "$logs/bench.json" >"$log" 2>&1 </dev/null || status=$?
	cat "$log"
	if [[ $status -eq 0 ]]; then pass "bench: done in $((SECONDS - begin)) s"; else fail "bench: ended with status $status"; fi
}

throughput_parts() {
	part "throughput disk" 150 0 "${hooked[@]}" "$python" "$tests/throughput.py" disk
	no_files_left "throughput disk"
	part "throughput cpu" 90 0 "${hooked[@]}" "$python" "$tests/throughput.py" cpu
	part "throughput cpu, backups retained" 60 0 "${hooked[@]}" "$python" "$tests/throughput.py" cpu-retained
}

# How the package's disable() ends inside of a region, with the library that is in place.
disable_inside() {
	saw "tms disable inside a region, $1, preload" 60 "$python" "$tests/tms/start.py" "$tests/tms/disable_inside.py" preload
	saw "tms disable inside a region, $1, torch" 60 "$python" "$tests/tms/disable_inside.py" torch
}

# The published torch_memory_saver, adopted, in both of its hook modes.
tms_parts() {
	local wheel site=$logs/site adopt=(dist/bin/ebb adopt --python "$python") plain
	wheel=$(find build/wheels -name 'torch_memory_saver-0.0.10-*.whl' -print -quit 2>/dev/null || true)
	if [[ -z $wheel ]]; then
		fail "tms: no torch_memory_saver 0.0.10 in build/wheels (make gpu-wheels)"
		return
	fi
	plain=$PYTHONPATH
	local -x PYTHONPATH=$site:$plain TMS_DISK_BACKUP_DIR=$disk/tms TMS_DISK_BACKUP_CHUNK_MB=256
	"$python" -m zipfile -e "$wheel" "$site"
	disable_inside "its own library"
	if "${adopt[@]}" >"$logs/tms-adopt.log" 2>&1 && "${adopt[@]}" --check >>"$logs/tms-adopt.log" 2>&1; then
		pass "tms: $(head -n 1 "$logs/tms-adopt.log")"
	else
		cat "$logs/tms-adopt.log"
		fail "tms: the package was not adopted"
		return
	fi
	part "tms preload" 200 0 "$python" "$tests/tms/start.py" "$tests/tms/main.py" preload
	part "tms torch" 200 0 "$python" "$tests/tms/main.py" torch
	part "tms everything" 120 0 env TMS_INIT_ENABLE=1 TMS_INIT_ENABLE_CPU_BACKUP=1 \
		"$python" "$tests/tms/start.py" "$tests/tms/everything.py" preload
	disable_inside "ebb"
	part "tms leave, preload" 60 0 "$python" "$tests/tms/start.py" "$tests/tms/leave.py" preload
	part "tms leave, torch" 60 0 "$python" "$tests/tms/leave.py" torch
	no_files_left "tms"
	"$python" -m zipfile -e "$wheel" "$logs/published"
	if "${adopt[@]}" --undo >"$logs/tms-undo.log" 2>&1 && diff -r "$logs/published" "$site" >/dev/null; then
		pass "tms: after --undo the package is as it was published"
	else
		cat "$logs/tms-undo.log"
		fail "tms: after --undo the package differs from what was published"
	fi
}

# reference_tests LIBRARY NAME PYTEST_ARGUMENT...: a run of torch_memory_saver's own tests.
reference_tests() {
	local library=$1 name=$2
	shift 2
	(cd "$EBB_REFERENCE_TESTS" && env -u CUBLAS_WORKSPACE_CONFIG PYTHONPATH="$logs/reference/$library" TMPDIR="$disk" \
		timeout --kill-after=15 400 "$python" -m pytest -q -rA -p no:cacheprovider "$@" \
		--junitxml "$logs/reference/$library-$name.xml" .) >"$logs/reference-$library-$name.log" 2>&1 </dev/null || true
}

# Some of these tests measure the memory of the whole device. All run one at a time, except those that
# look at their own process only: they run first, both libraries side by side.
reference_parts() {
	local wheel apart='rl_example or cpu_backup or disk_backup or test_utils or configure_subprocess' workers=() limit=() library
	if [[ ! -e ${EBB_REFERENCE_TESTS:-}/test_examples.py ]]; then
		fail "reference: EBB_REFERENCE_TESTS is not the folder test/ of torch_memory_saver's repository"
		return
	fi
	wheel=$(find build/wheels -name 'torch_memory_saver-0.0.10-*.whl' -print -quit 2>/dev/null || true)
	if [[ -z $wheel ]]; then
		fail "reference: no torch_memory_saver 0.0.10 in build/wheels (make gpu-wheels)"
		return
	fi
	mkdir "$logs/reference"
	for library in original ebb; do "$python" -m zipfile -e "$wheel" "$logs/reference/$library"; done
	if ! PYTHONPATH=$logs/reference/ebb dist/bin/ebb adopt --python "$python" >"$logs/reference-adopt.log" 2>&1; then
		cat "$logs/reference-adopt.log"
		fail "reference: the package was not adopted"
		return
	fi
	if "$python" -c 'import xdist' 2>/dev/null; then workers=(-n 4); fi
	# A program that dies leaves its test waiting.
	if "$python" -c 'import pytest_timeout' 2>/dev/null; then limit=(--timeout 90); fi
	for library in original ebb; do
		reference_tests "$library" apart -k "$apart" ${workers[@]+"${workers[@]}"} ${limit[@]+"${limit[@]}"} &
	done
	wait
	for library in original ebb; do
		reference_tests "$library" alone -k "not ($apart)" ${limit[@]+"${limit[@]}"}
	done
	"$python" "$tests/reference.py" "$logs/reference" || true
}

optim_parts() {
	part "optim" 400 0 "${hooked[@]}" "$python" "$tests/optim.py"
	no_files_left "optim"
}

# megatron-core's distributed optimizer over streamed state, where its wheel is there for this Python.
megatron_parts() {
	local wheel tag site=$logs/megatron
	tag=$("$python" -c 'import sys; print("cp%d%d" % sys.version_info[:2])')
	wheel=$(find build/wheels -name "megatron_core-0.16.1-$tag-*.whl" -print -quit 2>/dev/null || true)
	if [[ -z $wheel ]]; then
		echo "SAW megatron: skipped, no megatron-core 0.16.1 for $tag in build/wheels (make gpu-wheels)" | tee -a "$GPUTEST_REPORT"
		return
	fi
	"$python" -m zipfile -e "$wheel" "$site"
	PYTHONPATH=$site:$PYTHONPATH part "megatron" 300 0 "${hooked[@]}" "$python" -W ignore "$tests/megatron_optimizer.py"
	no_files_left "megatron"
}

# The GPU changes hands between a rank and a second process that holds nearly all of it.
swap_parts() {
	part "swap" 300 0 env GPUTEST_DISK="$disk" "$python" "$tests/swap.py"
	no_files_left "swap"
}

demo_parts() {
	part "demo" 240 0 "$python" examples/demo/demo_gpu.py
	local last
	last=$(tail -n 1 "$logs/demo.log")
	if [[ $last == "demo: ok "* ]]; then pass "$last"; else fail "demo: last line is: $last"; fi
}

parts=("$@")
[[ $# -gt 0 ]] || parts=(train content children python expandable vllm tms fingerprint throughput optim megatron swap bench demo)
for name in "${parts[@]}"; do
	declare -F "${name}_parts" >/dev/null || { echo "test-gpu: no part named $name" >&2; exit 2; }
	"${name}_parts"
done

passed=$(grep -c '^PASS ' "$GPUTEST_REPORT" || true)
failed=$(grep -c '^FAIL ' "$GPUTEST_REPORT" || true)
table() {
	echo
	echo "date      $(date -u +%Y-%m-%d)"
	echo "machine   $machine${driver:+, driver $driver}"
	echo "disk      $(df --output=fstype,source "$disk" | tail -n 1 | tr -s ' ')"
	echo "duration  $SECONDS s"
	grep '^FIGURE ' "$GPUTEST_REPORT" | sed 's/^FIGURE //' | awk -F': ' '{ printf "%-34s %s\n", $1, $2 }' || true
	grep -E '^(REFERENCE|SAW|FAIL) ' "$GPUTEST_REPORT" || true
	echo "test-gpu: $passed passed, $failed failed"
}
table | tee "$logs/table"
[[ -n ${OUT:-} && -d $OUT ]] && cp "$logs/table" "$OUT/test-gpu.txt"
[[ $failed -eq 0 && $passed -gt 0 ]]
