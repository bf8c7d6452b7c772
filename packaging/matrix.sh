#!/usr/bin/env bash
# Runs the core of the tests on every older Kubernetes version that localplane pins: `make test MATRIX=1`.
#   packaging/matrix.sh [VERSION…]
# A version whose programs cannot be obtained is counted as skipped. Prints one line for each version, and fails if a test
# fails.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

cargo=${CARGO:-cargo}
versions=("$@")
if [ ${#versions[@]} = 0 ]; then versions=(1.34 1.33 1.30); fi
failed=0
for version in "${versions[@]}"; do
    export LOCALPLANE_KUBERNETES=$version
    if ! "$cargo" run --locked --quiet -p localplane -- fetch >/dev/null; then
        if [ -n "${SKIPPED_TESTS:-}" ]; then
            printf 'Kubernetes %s\tneeds programs of this version, which Go builds\n' "$version" >>"$SKIPPED_TESTS"
        fi
        echo "Kubernetes $version: skipped, because its programs cannot be built"
        continue
    fi
    # The modules whose behaviour depends on the API server: watches, admission, conditional writes, gates.
    began=$SECONDS result=passed
    "$cargo" test --locked -p perennial-tests --test cluster --no-fail-fast -- \
        labels:: outages:: permissions:: restarts:: story:: || result=FAILED
    "$cargo" test --locked -p perennial-tests --test guarantees --no-fail-fast -- \
        admission:: g1_ g2_ g3_ g4_ g5_ g6_ g7_ g8_ || result=FAILED
    "$cargo" test --locked -p perennial-tests --test placement --no-fail-fast -- \
        exact:: failsafe:: moves:: rollouts:: stateful:: || result=FAILED
    echo "Kubernetes $version: $result in $((SECONDS - began)) s"
    if [ "$result" = FAILED ]; then failed=1; fi
done
exit "$failed"
