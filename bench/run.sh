#!/usr/bin/env bash
# Measures the CPU kernels and the demo model over gRPC on this machine. `./dev
# bench` builds first and calls this with the folder of the programs; JSON goes
# to build/bench. Recorded figures are in bench/results.
set -euo pipefail

programs=$1
source=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
out=$source/build/bench
mkdir -p "$out"
# shellcheck source=deploy/serve.sh
source "$source/deploy/serve.sh"

printf '\n== kernels\n'
"$programs/recurve-cpu-kernel-bench" --benchmark_out="$out/kernels.json" --benchmark_out_format=json

printf '\n== the demo model over gRPC\n'
serve "$programs" "$source/deploy/models/demo"

rss() { awk '/^VmRSS/ {print $2 " kB"}' "/proc/$server_pid/status"; }
run() {  # NAME, then arguments of recurve-client bench
  local name=$1
  shift
  printf '\n-- %s\n' "$name"
  "$programs/recurve-client" bench --server "$server_address" --json "$out/$name.json" "$@"
}

run streams-1 --concurrency 1 --num-requests 32 --warmup 2 --prompt-tokens 32 --output-tokens 256
run streams-16 --concurrency 16 --num-requests 128 --warmup 16 --prompt-tokens 32 --output-tokens 256
run mixed-32 --concurrency 32 --num-requests 256 --warmup 32 --prompt-tokens 1:700 --output-tokens 1:200

printf '\n-- memory of the server over %s requests\n' "${RECURVE_BENCH_REQUESTS:-10000}"
requests=${RECURVE_BENCH_REQUESTS:-10000}
: >"$out/memory.txt"
printf 'before: %s\n' "$(rss)" | tee -a "$out/memory.txt"
for part in 1 2 3 4 5; do
  "$programs/recurve-client" bench --server "$server_address" --concurrency 16 --seed "$part" \
    --num-requests $((requests / 5)) --prompt-tokens 1:64 --output-tokens 1:16 --cancel-fraction 0.1 >/dev/null
  printf 'after %s requests: %s\n' $((part * requests / 5)) "$(rss)" | tee -a "$out/memory.txt"
done
printf '\nresults in %s\n' "$out"
