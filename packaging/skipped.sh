#!/bin/sh
# Prints in one line how many tests were skipped, or skipped a part, and why. Each line of the file has the name of a
# test and the reason, separated by a tab.
[ -s "$1" ] || { echo "All tests passed, and none was skipped."; exit 0; }
sort -u "$1" | awk -F '\t' '
	{ count[$2]++; total++ }
	END {
		for (reason in count) list = list (list == "" ? "" : "; ") count[reason] " " reason
		printf "All tests passed, but %d skipped something: %s.\n", total, list
	}'
