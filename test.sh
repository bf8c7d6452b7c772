#!/usr/bin/env bash
# Runs all tests: the same as `make test`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
exec make test "$@"
