#!/bin/sh
# Checks of the built library itself: artefact.sh LIBRARY EXPORTS
set -eu
library=$1
exports=$2
failed=0

check() { # check WORDS COMMAND...: the command succeeds
	words=$1
	shift
	if "$@"; then echo "ok   $words"; else
		echo "FAIL $words"
		failed=1
	fi
}

same_exports() {
	nm -D --defined-only "$library" | awk '{print $3}' | LC_ALL=C sort | diff "$exports" -
}
no_newer_glibc() {
	newest=$(readelf -W --version-info "$library" | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1)
	[ "$(printf '%s\nGLIBC_2.34\n' "$newest" | sort -V | tail -n 1)" = GLIBC_2.34 ]
}
only_libc() {
	! readelf -dW "$library" | grep NEEDED | grep -v -e 'libc\.so\.6' -e 'ld-linux'
}
no_constructor() { # the one entry is the compiler's own frame_dummy
	[ "$(readelf -SW "$library" | awk '$2 == ".init_array" || $3 == ".init_array" {
		for (i = 1; i <= NF; i++) if ($i == "INIT_ARRAY") print $(i + 3) }')" = 000008 ]
}
no_symbol_versions() {
	! readelf -SW "$library" | grep -q gnu.version_d
}
names_disk_variable() {
	grep -q TMS_INIT_ENABLE_DISK_BACKUP "$library"
}
unloads_never() {
	readelf -dW "$library" | grep -q NODELETE
}

echo "== artefact $library"
check "it exports exactly what $exports lists" same_exports
check "it needs no glibc newer than 2.34" no_newer_glibc
check "it depends on nothing but libc" only_libc
check "it has no constructor" no_constructor
check "its exports carry no version: a versioned cudaMalloc would not take the runtime's place" no_symbol_versions
check "it names TMS_INIT_ENABLE_DISK_BACKUP, by which launchers tell that it has a disk backend" names_disk_variable
check "it is never unloaded: exit and fork handlers point into it" unloads_never
exit $failed
