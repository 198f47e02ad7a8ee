#!/usr/bin/env bash
# Serves the demo model, streams one completion, stops. `./dev demo` builds first
# and calls this with the folder of the programs.
set -euo pipefail

programs=$1
model=$(dirname "${BASH_SOURCE[0]}")/models/demo
# shellcheck source=deploy/serve.sh
source "$(dirname "${BASH_SOURCE[0]}")/serve.sh"

printf '\n== starting recurve-server on %s\n' "$model"
serve "$programs" "$model"
cat "$server_log/err" "$server_log/out"

prompt=$'import os\nimport sys\n\n'
printf '\n== streaming 160 tokens after the prompt below, from %s\n' "$server_address"
printf '%s' "$prompt"
"$programs/recurve-client" generate --server "$server_address" --prompt "$prompt" --max-new-tokens 160

printf '\n== draining the server\n'
kill -TERM "$server_pid"
status=0
wait "$server_pid" || status=$?
server_pid=
tail -n 2 "$server_log/err"
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
