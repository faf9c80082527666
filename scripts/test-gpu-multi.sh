#!/usr/bin/env bash
# Tests ebb on two GPUs of this machine: ranks that talk, ranks that share a disk, and one process with both. Needs
# what `make build` puts into dist/ (build it anywhere), Python with PyTorch, and a directory on a real disk.
#
#   scripts/test-gpu-multi.sh [--against LIB] [PART...]
#   scripts/test-gpu-multi.sh --soft [--against LIB] [PART...]
#
#   ddp      two ranks train over NCCL, with parking and without; what NCCL keeps while they are paused
#   graph    a captured all-reduce, replayed after a pause and a resume, with NCCL_GRAPH_REGISTER unset and 0
#   disk     both ranks pause at once into one disk, beside raw files; and those of another library
#   devices  one process with memory on both GPUs, which use each other's
#   pytorch  the same with PyTorch's allocator, plain and with expandable segments
#   tms      the published torch_memory_saver, by itself and adopted, on both GPUs
#
# Without a part: all of them. --soft: two software devices in place of GPUs, for the parts disk and devices, without
# PyTorch; it shows that the script works, and says nothing about a GPU.
#
# --against LIB  for the part disk: another library that has torch_memory_saver's functions. Default: that of
#                torch_memory_saver in build/wheels (make gpu-wheels), which the part tms needs too
# MULTI_MIB      MiB that each rank of the part disk parks, default 4096 (--soft: 16); twice as much for
#                each rank and library lies on the disk
# MULTI_ROUNDS   its rounds, default 5 (--soft: 1)
# GPUTEST_DISK   directory for backup files, default build/test-gpu
# PYTHON         the Python that has PyTorch, default python3
# OUT            existing directory for the logs, the report and the table; default: not kept
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
python=${PYTHON:-python3}
tests=$root/test/gpu/multi
ebb=$root/dist/bin/ebb

usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; }
wrong() { echo "test-gpu-multi: $1" >&2; exit 2; }

soft=false against='' parts=()
while [[ $# -gt 0 ]]; do
	case $1 in
	--soft) soft=true ;;
	--against) [[ $# -gt 1 ]] || wrong "--against needs a library"; against=$(realpath -e "$2") || exit 2; shift ;;
	-h | --help) usage; exit 0 ;;
	-*) wrong "no option $1" ;;
	*) parts+=("$1") ;;
	esac
	shift
done
all=(ddp graph disk devices pytorch tms)
if $soft; then all=(disk devices); fi
[[ ${#parts[@]} -gt 0 ]] || parts=("${all[@]}")
for name in "${parts[@]}"; do
	[[ " ${all[*]} " == *" $name "* ]] || wrong "no part $name here; there are: ${all[*]}"
done
for number in MULTI_MIB MULTI_ROUNDS; do
	[[ ${!number:-1} =~ ^[1-9][0-9]{0,8}$ ]] || wrong "$number must be a whole number from 1: ${!number}"
done
[[ -z ${OUT:-} || -d $OUT ]] || wrong "OUT is no directory: $OUT"
for need in dist/bin/ebb dist/lib/libebb.so dist/lib/libebb-engine.so dist/lib/torch_memory_saver/libebb.so; do
	[[ -e $need ]] || wrong "$need is missing (make build)"
done

if $soft; then
	device=soft machine="two software devices, Linux $(uname -r)"
	export SOFTGPU_DEVICES=2 SOFTGPU_MEM_MB=512 SOFTGPU_NODE=multi-$$ MULTI_CUDART=$root/dist/lib/softgpu/libcudart.so.13
	[[ -e $MULTI_CUDART ]] || wrong "${MULTI_CUDART#"$root"/} is missing (make build)"
else
	device=cuda
	if ! machine=$("$python" -c '
import platform, torch
assert torch.cuda.device_count() >= 2, f"{torch.cuda.device_count()} GPU"
with open("/proc/self/maps") as maps:
    print(next(path for path in (line.split(maxsplit=5)[-1].strip() for line in maps) if "/libcudart.so" in path))
nccl = ".".join(map(str, torch.cuda.nccl.version()))
print(f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}, PyTorch {torch.__version__}, NCCL {nccl}, Python {platform.python_version()}, Linux {platform.release()}")' 2>&1); then
		wrong "PyTorch finds no two GPUs: ${machine##*$'\n'}"
	fi
	export MULTI_CUDART=${machine%%$'\n'*}
	machine=${machine##*$'\n'}
	driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1 || true)
	machine+=${driver:+, driver $driver}
fi

# Everything made here lies in these two, which are removed at the end. The paths of sockets are short.
parent=${GPUTEST_DISK:-build/test-gpu}
made=false
if [[ ! -e $parent ]]; then mkdir -p "$parent" && made=true; fi
if ! { parent=$(cd "$parent" && pwd) && disk=$(mktemp -d "$parent/multi-XXXXXX"); }; then
	wrong "no files can be made there: set GPUTEST_DISK"
fi
logs=$(mktemp -d /tmp/ebb-multi-XXXXXX) || { rmdir "$disk"; exit 1; }
running=

finish() {
	if [[ -n $running ]]; then kill "$running" 2>/dev/null || true; wait "$running" || true; fi
	if [[ -n ${OUT:-} && -d $OUT ]]; then
		cp "$logs/report" "$OUT/test-gpu-multi.report"
		for log in "$logs"/*.log; do [[ -e $log ]] && printf '=== %s\n' "$(basename "$log" .log)" && cat "$log"; done >"$OUT/test-gpu-multi.log" || true
	fi
	rm -rf "$logs" "$disk"
	if $made; then rmdir --ignore-fail-on-non-empty "$parent"; fi
}
trap finish EXIT
trap 'exit 143' TERM HUP
trap 'exit 130' INT

export GPUTEST_REPORT=$logs/report MULTI_EBB=$ebb EBB_RUNTIME_DIR=$logs/run CUDA_CACHE_PATH=$logs/nv
export PYTHONPATH=$root/python:$root/test/gpu:$tests:$root/test/python PYTHONDONTWRITEBYTECODE=1
export NCCL_SOCKET_IFNAME=${NCCL_SOCKET_IFNAME:-lo} # all ranks are on this node
export CUBLAS_WORKSPACE_CONFIG=:4096:8 # PyTorch's deterministic mode wants it
: >"$GPUTEST_REPORT"

log_of() { echo "$logs/${1//[ ,\/]/-}.log"; }
report() { echo "$1" | tee -a "$GPUTEST_REPORT"; }

# part NAME SECONDS STATUS COMMAND...: runs a command, which must end with STATUS within SECONDS. One that does not is
# ended, with its ranks, by its process number: ebb run takes SIGTERM to them, and its guard kills them after SIGKILL.
part() {
	local name=$1 seconds=$2 want=$3 log begin=$SECONDS said got=0
	log=$(log_of "$name")
	said=$(wc -l <"$GPUTEST_REPORT")
	shift 3
	timeout --kill-after=45 "$seconds" "$@" >"$log" 2>&1 </dev/null &
	running=$!
	wait "$running" || got=$?
	running=
	tail -n +$((said + 1)) "$GPUTEST_REPORT"
	if [[ $got -ne $want ]]; then
		tail -n 25 "$log"
		if [[ $got -eq 124 || ($got -eq 137 && $((SECONDS - begin)) -ge $seconds) ]]; then
			report "FAIL $name: not done after $seconds s"
		elif ! tail -n +$((said + 1)) "$GPUTEST_REPORT" | grep -q '^FAIL '; then
			report "FAIL $name: ended with status $got, want $want"
		fi
	fi
	echo "---- $name: $((SECONDS - begin)) s"
	[[ $got -eq $want ]]
}

# Prefixes of a command: ranks under ebb that park to the disk, and ranks that ebb only starts.
under() { local ranks=$1; run=("$ebb" run --nproc-per-node "$ranks" --device "$device" --offload-train --offload-train-target disk --offload-train-disk-dir "$disk/run" --); }
plain() { local ranks=$1; run=("$ebb" run --nproc-per-node "$ranks" --device "$device" --); }

no_files_left() {
	local left
	left=$(find "$disk/run" -name '*.bak' 2>/dev/null | wc -l)
	if [[ $left -eq 0 ]]; then report "PASS $1: no backup file left"; else report "FAIL $1: $left backup files left"; fi
}

ddp_parts() {
	local steps=18 rank
	plain 2
	part "DDP without ebb" 240 0 "${run[@]}" "$python" "$tests/ddp.py" "$logs/plain" $steps 0 "$logs/meet" || return 0
	under 2
	part "DDP with parking" 300 0 "${run[@]}" "$python" "$tests/ddp.py" "$logs/parked" $steps 6 "$logs/meet" || true
	for rank in 0 1; do
		if [[ -s $logs/plain.$rank ]] && cmp -s "$logs/plain.$rank" "$logs/parked.$rank"; then
			report "PASS DDP, rank $rank: losses identical to the last bit: $steps steps"
		else
			report "FAIL DDP, rank $rank: losses differ from those without parking"
		fi
	done
	no_files_left "DDP"
}

graph_parts() {
	local setting name outcome kept missing warned said
	under 2
	for setting in unset 0; do
		name="graph, NCCL_GRAPH_REGISTER $setting"
		local set=(env -u NCCL_GRAPH_REGISTER)
		[[ $setting == unset ]] || set=(env NCCL_GRAPH_REGISTER="$setting")
		rm -f "$logs/outcome"
		part "$name" 240 0 "${set[@]}" "${run[@]}" "$python" "$tests/graph.py" "$logs/outcome" "$logs/meet" || continue
		read -r outcome kept missing <"$logs/outcome"
		warned=$(grep -c 'set NCCL_GRAPH_REGISTER=0' "$(log_of "$name")" || true)
		said="$kept MiB kept, $warned warnings"
		if [[ $missing -gt 0 ]]; then said+=", $missing MiB not freed"; fi
		outcome_is "$name" "$setting" "$outcome" "$warned" "$said"
	done
	no_files_left "graph"
}

# outcome_is NAME SETTING OUTCOME WARNED DETAIL: where NCCL may register, each of the two ranks warns once, whatever
# comes of it; where it must not, the replay goes right, without a warning.
outcome_is() {
	local name=$1 setting=$2 outcome=$3 warned=$4 detail=$5
	if [[ $setting == unset && $warned -eq 2 && $outcome =~ ^(replayed|hangs|wrong)$ ]] ||
		[[ $setting == 0 && $warned -eq 0 && $outcome == replayed ]]; then
		report "PASS $name: after a cycle: $outcome; $detail"
	else
		report "FAIL $name: after a cycle: $outcome; $detail"
	fi
}

disk_parts() {
	local mib=${MULTI_MIB:-4096} rounds=${MULTI_ROUNDS:-5} name
	if $soft; then mib=${MULTI_MIB:-16} rounds=${MULTI_ROUNDS:-1}; fi
	under 2
	part "disk, ebb" 600 0 "${run[@]}" "$python" "$tests/together.py" ebb "$mib" "$rounds" "$disk/raw" "$logs/meet" || true
	no_files_left "disk, ebb"
	[[ -n $against ]] || against=$(published_library)
	if [[ -z $against ]]; then
		if ! $soft; then report "SAW disk, another library: not run: none was given, and none is in build/wheels (make gpu-wheels)"; fi
		return
	fi
	name=$(basename "$against")
	name=${name%%.*} name=${name%%_hook_mode_*}
	plain 2
	part "disk, $name" 600 0 env -u TMS_DISK_BACKUP_DIR LD_PRELOAD="$against" LD_LIBRARY_PATH="$(dirname "$MULTI_CUDART")${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" \
		TMS_INIT_ENABLE=1 TMS_INIT_ENABLE_DISK_BACKUP=1 TMS_DISK_BACKUP_CHUNK_MB=256 \
		"${run[@]}" "$python" "$tests/together.py" "$name" "$mib" "$rounds" "$disk/against" "$logs/meet" || true
	rm -rf "$disk/against"
}

# published_library: path of the hook library of the wheel, for the CUDA of this PyTorch; nothing where there is none.
published_library() {
	local wheel
	wheel=$(find build/wheels -name 'torch_memory_saver-0.0.10-*.whl' -print -quit 2>/dev/null || true)
	if [[ -z $wheel ]] || $soft; then return 0; fi
	"$python" -m zipfile -e "$wheel" "$logs/published"
	find "$logs/published" -maxdepth 1 -name "*_preload_cu$("$python" -c 'import torch; print(torch.version.cuda.split(".")[0])').abi3.so" -print -quit
}

devices_parts() {
	local kind mib=2048
	if $soft; then mib=16; fi
	under 1
	for kind in malloc pieces; do
		part "two GPUs, $kind" 180 0 "${run[@]}" "$python" "$tests/devices.py" "$kind" $mib || true
	done
	no_files_left "two GPUs"
}

pytorch_parts() {
	under 1
	part "two GPUs, PyTorch, plain" 240 0 env -u PYTORCH_ALLOC_CONF -u PYTORCH_CUDA_ALLOC_CONF "${run[@]}" "$python" "$tests/pytorch_devices.py" plain || true
	part "two GPUs, PyTorch, expandable" 240 0 env PYTORCH_ALLOC_CONF=expandable_segments:True "${run[@]}" "$python" "$tests/pytorch_devices.py" expandable || true
	no_files_left "two GPUs, PyTorch"
}

# The package's own library first, which is only looked at; then the adopted one.
tms_parts() {
	local wheel site=$logs/site adopt=("$ebb" adopt --python "$python") start=("$python" "$root/test/gpu/tms/start.py" "$tests/tms_devices.py")
	wheel=$(find build/wheels -name 'torch_memory_saver-0.0.10-*.whl' -print -quit 2>/dev/null || true)
	if [[ -z $wheel ]]; then
		report "SAW tms: not run: no torch_memory_saver 0.0.10 in build/wheels (make gpu-wheels)"
		return
	fi
	local -x PYTHONPATH=$site:$root/test/gpu/tms:$PYTHONPATH TMS_DISK_BACKUP_DIR=$disk/tms TMS_DISK_BACKUP_CHUNK_MB=256
	"$python" -m zipfile -e "$wheel" "$site"
	look "tms, original, preload" "${start[@]}" preload original
	look "tms, original, torch" "$python" "$tests/tms_devices.py" torch original
	if ! "${adopt[@]}" >"$logs/adopt.log" 2>&1; then
		cat "$logs/adopt.log"
		report "FAIL tms: the package was not adopted"
		return
	fi
	part "tms preload" 180 0 "${start[@]}" preload ebb || true
	part "tms torch" 180 0 "$python" "$tests/tms_devices.py" torch ebb || true
}

# look NAME COMMAND...: what somebody else's library does: recorded, and no check of ours.
look() {
	local name=$1 report_file=$logs/look
	shift
	: >"$report_file"
	GPUTEST_REPORT=$report_file timeout --kill-after=15 180 "$@" >"$(log_of "$name")" 2>&1 </dev/null &
	running=$!
	local got=0
	wait "$running" || got=$?
	running=
	sed -E -e 's/^PASS (.*)$/SAW \1/' -e 's/^FAIL (.*): (.*)$/SAW \1: fails: \2/' "$report_file" | tee -a "$GPUTEST_REPORT"
	if [[ $got -ne 0 ]] && ! grep -q '^FAIL ' "$report_file"; then report "SAW $name: ended with status $got"; fi
}

for name in "${parts[@]}"; do "${name}_parts"; done

passed=$(grep -c '^PASS ' "$GPUTEST_REPORT" || true)
failed=$(grep -c '^FAIL ' "$GPUTEST_REPORT" || true)
table() {
	echo
	echo "date      $(date -u +%Y-%m-%d)"
	echo "machine   $machine"
	echo "disk      $(df --output=fstype,source "$disk" | tail -n 1 | tr -s ' ')"
	echo "duration  $SECONDS s"
	echo
	printf '%-54s %-7s %s\n' check result figure
	# A line is "CHECK: WHAT: FIGURE"; a failure can be "CHECK: REASON".
	awk '{
		kind = $1
		sub(/^[A-Z]+ /, "")
		n = split($0, words, ": ")
		keep = n > 2 ? 2 : (kind == "PASS" ? n : 1)
		check = words[1] (keep == 2 ? ": " words[2] : "")
		figure = substr($0, length(check) + 3, 160)
		result = kind == "PASS" ? "ok" : kind == "FAIL" ? "FAILED" : kind == "FIGURE" ? "-" : "seen"
		printf "%-54s %-7s %s\n", check, result, figure
	}' "$GPUTEST_REPORT"
	echo "test-gpu-multi: $passed passed, $failed failed"
}
table | tee "$logs/table"
[[ -n ${OUT:-} && -d $OUT ]] && cp "$logs/table" "$OUT/test-gpu-multi.txt"
[[ $failed -eq 0 && $passed -gt 0 ]]
