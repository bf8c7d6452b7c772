#!/bin/sh
# Prints in one line how many tests were skipped, or skipped a part, and why. Each line of the file has the name of a
# test and the reason, separated by a tab.
#   packaging/skipped.sh FILE [TEXT]
# With TEXT, fails if a line contains it: what was not run must not pass.
[ -s "$1" ] || { echo "All tests passed, and none was skipped."; exit 0; }
sort -u "$1" | awk -F '\t' '
	{ count[$2]++; total++ }
	END {
		for (reason in count) list = list (list == "" ? "" : "; ") count[reason] " " reason
		printf "All tests passed, but %d skipped something: %s.\n", total, list
	}'
if [ -n "${2:-}" ] && grep -F -- "$2" "$1" >&2; then
	echo "the tests above must not be skipped here" >&2
	exit 1
fi
