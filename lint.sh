#!/usr/bin/env bash
# Checks format, code and dependencies: the same as `make lint`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
exec make lint "$@"
