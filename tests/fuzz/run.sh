#!/usr/bin/env bash
# Runs the fuzz target BUILD/bin/fuzz_NAME for SECONDS, from tests/fuzz/corpus
# and what earlier runs found. New inputs go to BUILD/found/NAME, one that fails
# to BUILD/found/NAME-crash-….
set -euo pipefail
build=$1 name=$2 seconds=$3
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
found=$build/found/$name
mkdir -p "$found"
exec "$build/bin/fuzz_$name" -max_total_time="$seconds" -max_len=16384 \
  -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 -verbosity=0 -print_funcs=0 \
  -dict="$here/$name.dict" -artifact_prefix="$found-" "$found" "$here/corpus/$name"
