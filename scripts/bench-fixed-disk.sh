#!/usr/bin/env bash
# Runs ebb bench with the disk held at a fixed rate by the kernel, so that what ebb loses shows without the ups and
# downs of a disk. Needs root and the block I/O controller (cgroup v1 or v2).
#
#   scripts/bench-fixed-disk.sh MBPS DIR [FLAG...]
#
# MBPS  megabytes (10^6 bytes) a second that the drive below DIR takes, and that it gives
# DIR   directory for backup files
# FLAG  of ebb bench
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
[[ $# -ge 2 && $1 =~ ^[1-9][0-9]*$ ]] || { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0" >&2; exit 2; }
rate=$(($1 * 1000000)) dir=$2
shift 2

# The drive, not the partition: that is what the controller limits.
device=$(df --output=source "$dir" | tail -n 1)
name=$(lsblk -no pkname "$device" 2>/dev/null | head -n 1 || true)
[[ -n $name ]] && device=/dev/$name
number=$(lsblk -dno MAJ:MIN "$device" 2>/dev/null | tr -d ' ') || { echo "bench-fixed-disk: $dir is on $device, which is no drive" >&2; exit 2; }

running=
finish() {
	if [[ -n $running ]]; then kill "$running" 2>/dev/null || true; wait "$running" || true; fi
	rmdir "$group"
}
trap 'exit 143' TERM HUP
trap 'exit 130' INT
if [[ -d /sys/fs/cgroup/blkio ]]; then
	group=/sys/fs/cgroup/blkio/ebb-bench-$$
	mkdir "$group"
	trap finish EXIT
	echo "$number $rate" >"$group/blkio.throttle.write_bps_device"
	echo "$number $rate" >"$group/blkio.throttle.read_bps_device"
else
	group=/sys/fs/cgroup/ebb-bench-$$
	mkdir "$group"
	trap finish EXIT
	echo "$number rbps=$rate wbps=$rate" >"$group/io.max"
fi
# A shell of its own is put there: the one that removes the group must not be in it. It is waited for in such a way that
# a signal to this script ends it, and not the wait alone.
bash -c 'echo $$ >"$1/cgroup.procs" && shift && exec "$@"' bench "$group" "$root/dist/bin/ebb" bench --disk-dir "$dir" "$@" &
running=$!
status=0
wait "$running" || status=$?
running=
exit "$status"
