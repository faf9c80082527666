#!/usr/bin/env bash
# again.sh COMMAND...: runs a command that fetches something. In a full run (.ci/run) it has three tries, since servers and
# networks fail for moments; elsewhere one. The status is that of the last.
set -euo pipefail

[[ -n ${EBB_CI:-} ]] || exec "$@"
for pause in 5 20; do
	if "$@"; then exit 0; fi
	echo "again.sh: failed, and tried again in $pause s: $*" >&2
	sleep "$pause"
done
exec "$@"
