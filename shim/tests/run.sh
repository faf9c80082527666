#!/bin/sh
# Runs the test programs: run.sh FLAVOUR DIRECTORY PROGRAM...
# The library under test is preloaded into each case, after the sanitizer's runtime if there is one.
set -eu
flavour=$1
directory=$(cd "$2" && pwd)
shift 2

case $flavour in
asan) runtime=$(${CC:-cc} -print-file-name=libasan.so): ;;
tsan) runtime=$(${CC:-cc} -print-file-name=libtsan.so): ;;
*) runtime= ;;
esac
export EBB_TEST_PRELOAD="$runtime$directory/libebb.so"

failed=0
for program in "$@"; do
	echo "== $flavour $program"
	"$directory/$program" || failed=1
done
exit $failed
