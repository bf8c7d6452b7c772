#!/usr/bin/env bash
# Starts Prometheus with the rules of monitoring/alerts.yaml and the operator of `make up` as its target, and prints its
# address. Ctrl-C ends it. PROMETHEUS_PORT selects another port than 9090.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
port=${PROMETHEUS_PORT:-9090}
log=.up/plane/logs/perennial.log
folder=.up/monitoring

# Returns the path of Prometheus: on the PATH, or from Debian's package in the cache of the tests.
find_prometheus() {
    command -v prometheus && return
    local cache=${PERENNIAL_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/perennial-tools}
    local program=$cache/prometheus/usr/bin/prometheus
    if [ ! -x "$program" ]; then
        mkdir -p "$cache"
        local partial
        partial=$(mktemp -d "$cache/prometheus.XXXXXX")
        (cd "$partial" && apt-get download --quiet prometheus >&2 && dpkg-deb --extract prometheus_*.deb . && rm prometheus_*.deb) ||
            { echo "monitoring: Prometheus is neither on the PATH nor in Debian's packages" >&2; exit 1; }
        rm -rf "$cache/prometheus" && mv "$partial" "$cache/prometheus"
    fi
    echo "$program"
}

# Writes the current address of the operator, whose port changes with every start.
write_target() {
    local address
    address=$(sed -n 's/.*serving \/metrics.*address=[^ ]*:\([0-9]*\).*/127.0.0.1:\1/p' "$log" | tail -1)
    [ -n "$address" ] || { echo "monitoring: $log has no address of /metrics" >&2; exit 1; }
    [ "$(cat "$folder/address" 2>/dev/null)" = "$address" ] && return
    printf '[{"targets": ["%s"]}]\n' "$address" >"$folder/targets.json.new"
    mv "$folder/targets.json.new" "$folder/targets.json"
    echo "$address" >"$folder/address"
}

[ -f "$log" ] || { echo "monitoring: nothing is running; start it with \`make up\`" >&2; exit 1; }
if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then
    echo "monitoring: port $port is in use; choose another one: PROMETHEUS_PORT=9091 make monitoring" >&2
    exit 1
fi
program=$(find_prometheus)
rm -rf "$folder" && mkdir -p "$folder"
write_target
cat >"$folder/prometheus.yml" <<YAML
global: {scrape_interval: 5s, evaluation_interval: 5s}
rule_files: ["$root/monitoring/alerts.yaml"]
scrape_configs:
- job_name: perennial
  file_sd_configs: [{files: ["$root/$folder/targets.json"], refresh_interval: 5s}]
YAML
"$program" --config.file="$folder/prometheus.yml" --storage.tsdb.path="$folder/data" \
    --web.listen-address="127.0.0.1:$port" >"$folder/log" 2>&1 &
server=$!
trap 'kill "$server" 2>/dev/null; wait "$server" 2>/dev/null; exit 0' INT TERM
trap 'kill "$server" 2>/dev/null || true' EXIT
ready() { curl --silent --fail --output /dev/null "http://127.0.0.1:$port/-/ready"; }
until ready; do
    kill -0 "$server" 2>/dev/null || { tail -5 "$folder/log" >&2; exit 1; }
    sleep 0.2
done
echo "Prometheus: http://127.0.0.1:$port/alerts (rules and live data of the operator of \`make up\`). Press Ctrl-C to stop."
echo "For Grafana: import monitoring/dashboard.json with this Prometheus as its data source."
while kill -0 "$server" 2>/dev/null && [ -f "$log" ]; do
    write_target
    sleep 2
done
