# shellcheck shell=bash
# Sourced by scripts that need a server for a while.
#
#   serve PROGRAMS MODEL [FLAGS…]   starts recurve-server on free ports and waits
#                                   for it, SERVE_SECONDS (30) at most
#
# sets server_pid, server_address and server_log (the folder with its out and
# err); whatever is still running ends with the script, by end_server.

server_pid=
server_log=$(mktemp -d)
end_server() {
  [ -z "$server_pid" ] || kill -TERM "$server_pid" 2>/dev/null || true
  rm -rf "$server_log"
}
trap end_server EXIT

serve() {
  local programs=$1 model=$2
  shift 2
  "$programs/recurve-server" --model "$model" --grpc-port 0 --http-port 0 "$@" \
    >"$server_log/out" 2>"$server_log/err" &
  server_pid=$!
  for _ in $(seq $((${SERVE_SECONDS:-30} * 10))); do
    server_address=$(sed -n 's/^listening grpc=//p' "$server_log/out")
    [ -z "$server_address" ] || return 0
    kill -0 "$server_pid" 2>/dev/null || { cat "$server_log/err" >&2; exit 1; }
    sleep 0.1
  done
  echo "the server did not come up" >&2
  cat "$server_log/err" >&2
  exit 1
}
