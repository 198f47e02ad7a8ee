#!/usr/bin/env bash
# Measures how many tokens a second one recurve-client process takes, from a
# server that computes nothing (recurve-token-source) on the same machine:
#   bench/client_rate.sh PROGRAMS [STREAMS [STEP_MS [SECONDS]]]
# where each stream gets one token each STEP_MS. Prints tokens a second, the
# lateness of the last percent of tokens, and the processor time of the client.
# A client that could not keep up would have fewer than STREAMS * 1000 / STEP_MS.
set -euo pipefail

programs=$1
streams=${2:-256}
step_ms=${3:-10}
seconds=${4:-20}
folder=$(mktemp -d)
server_pid=
cleanup() {
  [ -z "$server_pid" ] || kill "$server_pid" 2>/dev/null || true
  rm -rf "$folder"
}
trap cleanup EXIT

"$programs/recurve-token-source" --step-ms "$step_ms" >"$folder/server" &
server_pid=$!
for _ in $(seq 100); do
  grep -q listening "$folder/server" && break
  kill -0 "$server_pid" 2>/dev/null || break
  sleep 0.1
done
address=$(sed -n 's/^listening grpc=//p' "$folder/server")
[ -n "$address" ] || { echo "client_rate: recurve-token-source did not come up" >&2; exit 1; }

TIMEFORMAT='%U %S'
{ time "$programs/recurve-client" bench --server "$address" --concurrency "$streams" \
  --duration "$seconds" --prompt-tokens 64 --output-tokens 100:300 \
  --json "$folder/report.json" >/dev/null 2>"$folder/errors"; } 2>"$folder/time" ||
  { cat "$folder/errors" >&2; exit 1; }

figure() { sed -n "s/^  \"$1\": \([0-9.e+-]*\),*$/\1/p" "$folder/report.json"; }
read -r user system <"$folder/time"
awk -v streams="$streams" -v step="$step_ms" -v duration="$(figure duration)" \
  -v tokens="$(figure total_output_tokens)" -v p50="$(figure median_itl_ms)" \
  -v p99="$(figure p99_itl_ms)" -v user_s="$user" -v system_s="$system" -v failed="$(figure failed)" 'BEGIN {
  printf "%d streams, a token each %g ms: at most %d tokens/s\n", streams, step, streams * 1000 / step
  printf "received %.0f tokens/s over %.1f s, %d requests failed\n", tokens / duration, duration, failed
  printf "inter-token latency median %.2f ms, p99 %.2f ms\n", p50, p99
  printf "client: %.1f s of processor time, %.0f%% of a core, %.0f tokens for each second of it\n",
    user_s + system_s, 100 * (user_s + system_s) / duration, tokens / (user_s + system_s)
}'
