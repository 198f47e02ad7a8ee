#!/usr/bin/env bash
# Serves the demo model, streams one completion, stops. `./dev demo` builds first
# and calls this with the folder of the programs.
set -euo pipefail

programs=$1
model=$(dirname "${BASH_SOURCE[0]}")/models/demo
work=$(mktemp -d)
server_pid=
cleanup() {
  [ -z "$server_pid" ] || kill -TERM "$server_pid" 2>/dev/null || true
  rm -rf "$work"
}
trap cleanup EXIT

printf '\n== starting recurve-server on %s\n' "$model"
"$programs/recurve-server" --model "$model" --grpc-port 0 --http-port 0 \
  >"$work/out" 2>"$work/err" &
server_pid=$!
address=
for _ in $(seq 300); do
  address=$(sed -n 's/^listening grpc=//p' "$work/out")
  [ -z "$address" ] || break
  kill -0 "$server_pid" 2>/dev/null || { cat "$work/err" >&2; exit 1; }
  sleep 0.1
done
[ -n "$address" ] || { echo "the server did not come up" >&2; cat "$work/err" >&2; exit 1; }
cat "$work/err" "$work/out"

prompt=$'import os\nimport sys\n\n'
printf '\n== streaming 160 tokens after the prompt below, from %s\n' "$address"
printf '%s' "$prompt"
"$programs/recurve-client" generate --server "$address" --prompt "$prompt" --max-new-tokens 160

printf '\n== draining the server\n'
kill -TERM "$server_pid"
status=0
wait "$server_pid" || status=$?
server_pid=
tail -n 2 "$work/err"
[ "$status" -eq 0 ] || { echo "the server ended with status $status" >&2; exit 1; }

cat <<TEXT

What happened: recurve-server loaded a 5.3-million-parameter hybrid of tensor
product attention and linear attention, recurve-client sent a prompt over gRPC,
the tokens were streamed back as they were made, and SIGTERM let the server
finish and stop.

To keep a server running:
  $programs/recurve-server --model $model
and, in another terminal:
  $programs/recurve-client generate --prompt 'def add(a, b):' --max-new-tokens 64
  $programs/recurve-client info
TEXT
