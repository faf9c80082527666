#!/bin/sh
# Slurm epilog: removes what ebb's ranks left on this node's disks when their job was killed.
#
# Slurm runs it as root, once on each node of a job, when the job has ended. It runs `ebb gc` as the job's user, so that
# nothing is removed but rank directories and backup files which ebb can prove to be that user's and dead; what a live
# job uses stays. It never fails: an epilog that fails drains the node. What it did, or why not, is one line in the
# system log (or the file that the setting log names). It never stays: all that can hang (disks, the directory of users)
# is done by a second run of this script, which is given up in time.
#
# Settings are read from ebb-epilog.conf beside this script; see the one in this folder.

PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin # slurmd may give none
export PATH
case $0 in
/*) self=$0 ;;
*) self=$(pwd)/$0 ;;
esac
cd / || exit 0

ebb=ebb
disk_dirs='/scratch/miles_train_offload_%U'
seconds=60
log=

say() {
	if [ -n "$log" ]; then
		printf '%s ebb-epilog[%s]: job %s: %s\n' "$(date +%FT%T)" "${SLURMD_NODENAME:-?}" "${SLURM_JOB_ID:-?}" "$1" >>"$log"
	else
		timeout 5 logger -t ebb-epilog "job ${SLURM_JOB_ID:-?}: $1"
	fi 2>/dev/null
	return 0
}

finish() {
	say "$1"
	exit 0
}

trap 'exit 0' EXIT # whatever ends this script

conf=${self%/*}/ebb-epilog.conf
if [ -r "$conf" ]; then
	sh -n "$conf" 2>/dev/null || finish "$conf is no shell script: nothing was done"
	# shellcheck source=deploy/slurm/ebb-epilog.conf
	. "$conf"
fi
case $seconds in
'' | *[!0-9]* | 0*) finish "seconds='$seconds' in $conf is no number: nothing was done" ;;
esac

if [ "${1-}" != work ]; then
	# timeout kills itself with what it runs, so nobody waits for a process that a disk holds in the kernel.
	timeout -s KILL "$((seconds + 10))" "$self" work </dev/null >/dev/null 2>&1
	status=$?
	[ "$status" -eq 0 ] || finish "no end after $((seconds + 10)) s: does a disk hang, or the directory of users? (status $status)"
	exit 0
fi

# Who it was. Names from Slurm are checked: they become words of a command that root starts.
uid=${SLURM_JOB_UID:-}
job=${SLURM_JOB_ID:-}
case $uid in
'' | *[!0-9]*) finish "SLURM_JOB_UID='$uid' is no number of a user: nothing was done" ;;
esac
case $job in
'' | *[!0-9]*) finish "SLURM_JOB_ID='$job' is no number of a job: nothing was done" ;;
esac
gid=$(id -g "$uid" 2>/dev/null) || gid=${SLURM_JOB_GID:-}
case $gid in
'' | *[!0-9]*) finish "user $uid has no group here: nothing was done" ;;
esac

command -v "$ebb" >/dev/null 2>&1 || finish "$ebb is not there (the setting ebb in $conf): nothing was done"

# The disk directories: %U is the number of the user, %u the name, %j the job. Those that are not there had no rank.
name=${SLURM_JOB_USER:-$(id -nu "$uid" 2>/dev/null)}
case $name in
*[!A-Za-z0-9._@-]*) name=$uid ;; # never a part of a path or of sed's command
esac
dirs=
set -f # words of the setting, no file names
for dir in $disk_dirs; do
	dir=$(printf '%s' "$dir" | sed "s/%U/$uid/g; s/%u/$name/g; s/%j/$job/g")
	case $dir in
	*,* | [!/]*) finish "disk directory $dir of $conf is no absolute path without commas: nothing was done" ;;
	esac
	dirs="$dirs $dir"
done

# as_user runs a command as the user, with nothing of the environment of slurmd.
half=$((seconds / 2))
as_user() {
	timeout -k 5 "$seconds" setpriv --reuid="$uid" --regid="$gid" --clear-groups --no-new-privs \
		env -i PATH="$PATH" HOME=/ EBB_IO_TIMEOUT="$half" "$@" </dev/null
}

# shellcheck disable=SC2016,SC2086 # the user's shell expands; the directories are words
there=$(as_user sh -c 'for dir; do if [ -d "$dir" ] && [ ! -L "$dir" ]; then printf "%s," "$dir"; fi; done' sh $dirs 2>/dev/null)
status=$?
case $status in
124 | 137) finish "no end after $seconds s: does a disk hang? looked for$dirs" ;;
esac
[ -n "$there" ] || exit 0
said=$(as_user "$ebb" gc --disk-dir "${there%,}" 2>&1)
status=$?
# Of what ebb gc says the sum, and what it could not do.
line=$(printf '%s\n' "$said" | grep -v '^live ' | tail -n 3 | tr '\n' ';' | cut -c 1-400)
case $status in
0) ;;
124 | 137) line="no end after $seconds s: does a disk hang? $line" ;;
*) line="status $status: $line" ;;
esac
case $status:$said in
0:'removed 0 files, 0 B, in '*) exit 0 ;; # nothing was there: no line
esac
finish "${line:-nothing was said}"
