#!/usr/bin/env bash
# Builds the image without a Docker engine and shows that it serves: as root, on a
# Debian with buildah and debootstrap (`apt-get install buildah debootstrap`).
#
#   deploy/container/prove.sh [cpu|cuda]
#
# 1. A base image from a debootstrap root file system of Debian 12, for `debian:12`.
# 2. The Dockerfile, all stages, with buildah.
# 3. Its own entry point, environment and user over a read-only root, in its own
#    mount and process namespaces, without privileges.
# 4. Its health check, in the same container, until SERVING.
# 5. Requests from outside over loopback, a chat among them, metrics, and what the
#    process may do.
# 6. SIGTERM while a stream runs: the stream is whole, the status 0.
#
# Everything is kept in build/container, so that a second run is short; delete the
# folder to start again. CCACHE_DIR is used where it is set. REPEAT=1 builds a second time from nothing and compares the
# layers. For `cuda` the toolkit of this machine, /usr/local/cuda, is lent to the
# build; the server then runs on the CPU, which shows the packing and not the GPU.
#
# Not part of ./dev test: it installs packages into the base from the network and
# compiles the tree once more. Exit status 77, and a line that says why, where it
# cannot run.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

variant=${1:-cpu}
skip() { echo "skipped: $*"; exit 77; }
fail() { echo "prove: $*" >&2; exit 1; }
say() { printf '\n== %s\n' "$*"; }
case $variant in cpu|cuda) ;; *) fail "the variant is '$variant'; it may be cpu or cuda" ;; esac
[ "$(id -u)" -eq 0 ] || skip "not root: a container is mounted and its user is changed to"
for tool in buildah debootstrap python3 unshare nsenter pgrep; do
  command -v "$tool" >/dev/null || skip "there is no $tool"
done

work=$PWD/build/container
mkdir -p "$work/ccache"
image=localhost/recurve:$variant
base=localhost/debian:12
buildah() {
  command buildah --root "$work/storage" --runroot "$work/run" --storage-driver vfs "$@"
}

if ! buildah inspect --type image "$base" >/dev/null 2>&1; then
  say "the base image, from debootstrap"
  rm -rf "$work/rootfs"
  debootstrap --variant=minbase bookworm "$work/rootfs" >"$work/debootstrap.log" 2>&1 ||
    { tail "$work/debootstrap.log" >&2; fail "debootstrap failed"; }
  container=$(buildah from scratch)
  buildah add --quiet "$container" "$work/rootfs" / >/dev/null
  buildah config --cmd bash "$container"
  buildah commit --quiet --rm "$container" "$base" >/dev/null
  rm -rf "$work/rootfs"
fi

build() {  # build IMAGE [option...]
  local name=$1
  shift
  local volumes=(--volume "${CCACHE_DIR:-$work/ccache}:/ccache:rw")
  if [ "$variant" = cuda ]; then
    [ -x /usr/local/cuda/bin/nvcc ] || skip "there is no CUDA toolkit in /usr/local/cuda"
    volumes+=(--volume "$(readlink -f /usr/local/cuda):/usr/local/cuda:ro")
  fi
  buildah build --isolation chroot --format docker --layers --timestamp 0 --pull-never \
    "${volumes[@]}" --build-arg BASE="$base" --build-arg VARIANT="$variant" \
    --build-arg BUILD_TYPE="${BUILD_TYPE:-Release}" "$@" \
    -f deploy/container/Dockerfile -t "$name" .
}
layers() { buildah inspect --type image --format '{{range .OCIv1.RootFS.DiffIDs}}{{println .}}{{end}}' "$1"; }

say "building $image"
build "$image"
layers "$image"
if [ "${REPEAT:-0}" = 1 ]; then
  say "building it again, from nothing"
  build "$image-again" --no-cache
  [ "$(layers "$image")" = "$(layers "$image-again")" ] || fail "the second build has other layers"
  echo "the same layers"
fi

say "without chat"
build "$image-no-chat" --build-arg CHAT=no
container=$(buildah from --pull-never "$image-no-chat")
found=$(find "$(buildah mount "$container")" -name '*python*' -o -name '*jinja*')
buildah rm "$container" >/dev/null
[ -z "$found" ] || fail "the image without chat has $found"

say "the container"
root=$work/root
pids=()
container=
finish() {
  for pid in "${pids[@]}"; do kill -KILL "$pid" 2>/dev/null || true; done
  # shellcheck disable=SC2015
  [ -z "$container" ] || { buildah umount "$container" && buildah rm "$container"; } >/dev/null || true
}
trap finish EXIT
container=$(buildah from --pull-never "$image")
root=$(buildah mount "$container")
# A runtime makes the places where it mounts.
mkdir -p "$root"/{proc,dev}
touch "$root/dev/null"
printf 'size: '; du -sh "$root" | cut -f1
for name in sh bash dash busybox apt dpkg; do
  found=$(find "$root" -name "$name" -type f -o -name "$name" -type l)
  [ -z "$found" ] || fail "the image has $found"
done
python3 - "$root" <<'PYTHON'
import json, pathlib, sys
root = pathlib.Path(sys.argv[1])
sbom = json.loads((root / "usr/share/sbom/recurve.spdx.json").read_text())
names = {p["name"] for p in sbom["packages"]}
assert {"recurve", "libc6", "libssl3", "ca-certificates", "python3-jinja2"} <= names, names
ids = [p["SPDXID"] for p in sbom["packages"]]
assert len(set(ids)) == len(ids)
assert {r["relatedSpdxElement"] for r in sbom["relationships"]} == set(ids)
print(f"list of packages: {len(names)} names")
PYTHON

# What the image says to run.
config() { buildah inspect --type image --format "{{$1}}" "$image"; }
user=$(config .Docker.Config.User)
[ "$user" = 65532:65532 ] || fail "the user is '$user'"
mapfile -t environment < <(config 'range .Docker.Config.Env}}{{println .}}{{end')
mapfile -t entrypoint < <(config 'range .Docker.Config.Entrypoint}}{{println .}}{{end')
mapfile -t health < <(config 'range .Docker.Config.Healthcheck.Test}}{{println .}}{{end')
drop_empty() { local -n list=$1; local kept=() x; for x in "${list[@]}"; do [ -z "$x" ] || kept+=("$x"); done; list=("${kept[@]}"); }
drop_empty environment; drop_empty entrypoint; drop_empty health
[ "${health[0]}" = CMD ] || fail "the health check is '${health[*]}'"
printf 'entry point: %s, user %s\nhealth check: %s\n' "${entrypoint[*]}" "$user" "${health[*]:1}"
read -r grpc http < <(python3 -c '
import socket
s = [socket.socket() for _ in range(2)]
for x in s: x.bind(("127.0.0.1", 0))
print(*(x.getsockname()[1] for x in s))')
# The demo model has no chat template.
echo '{% for message in messages %}{{ message.content }}{% endfor %}' >"$root/models/chat.jinja"
environment+=(RECURVE_CHAT_TEMPLATE=/models/chat.jinja)
# The container has the network of this machine: ports that are free, of loopback.
environment+=(RECURVE_HOST=127.0.0.1 "RECURVE_GRPC_PORT=$grpc" "RECURVE_HTTP_PORT=$http"
  "RECURVE_SERVER=127.0.0.1:$grpc"
  # A busy machine takes long for the stream below.
  RECURVE_SHUTDOWN_TIMEOUT=600)

rm -f "$work/out" "$work/err"
: >"$work/out"
# In new namespaces: the root read-only, /proc of its own processes; then without
# capabilities, as the user.
env -i "${environment[@]}" "$(command -v unshare)" --mount --pid --fork --kill-child \
  "$(python3 -c 'import sys; print(sys.executable)')" -c '
import ctypes, os, subprocess, sys
root, user, *command = sys.argv[1:]
mount = lambda *a: subprocess.run(["/bin/mount", *a], check=True)
mount("--bind", "--make-private", root, root)
mount("-t", "proc", "-o", "nosuid,nodev,noexec", "proc", root + "/proc")
mount("--bind", "/dev/null", root + "/dev/null")
mount("-o", "remount,bind,ro", root)
uid, gid = map(int, user.split(":"))
libc = ctypes.CDLL(None)
PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 24, 38
os.chroot(root)
os.chdir("/")
for capability in range(64):
    libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
os.setgroups([])
os.setresgid(gid, gid, gid)
os.setresuid(uid, uid, uid)
assert libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
os.execvp(command[0], command)
' "$root" "$user" "${entrypoint[@]}" >"$work/out" 2>"$work/err" &
runtime=$!
pids+=("$runtime")

server=
for _ in $(seq 300); do
  ! grep -q '^listening grpc' "$work/out" || { server=$(pgrep -P "$runtime"); break; }
  kill -0 "$runtime" 2>/dev/null || { cat "$work/err" >&2; fail "the server ended"; }
  sleep 0.2
done
[ -n "$server" ] || { cat "$work/err" >&2; fail "the server did not come up"; }
# setresuid cleared the signal that would end it with its parent.
pids+=("$server")
cat "$work/err" "$work/out"

say "health, by the image's own check, inside"
env -i "${environment[@]}" "$(command -v nsenter)" --target "$server" --mount --pid --root \
  --setuid 65532 --setgid 65532 "${health[@]:1}"

say "what the process is"
grep -E '^(Name|Uid|Gid|NSpid|CapEff|CapBnd|NoNewPrivs):' "/proc/$server/status"
field() { awk -v name="$1:" '$1 == name {print $2}' "/proc/$server/status"; }
[ "$(field Uid)" = 65532 ] || fail "it runs as user $(field Uid)"
[ "$(field CapEff)$(field CapBnd)" = 00000000000000000000000000000000 ] || fail "it has capabilities"
[ "$(awk '/^NSpid:/ {print $NF}' "/proc/$server/status")" = 1 ] || fail "it is not process 1"
awk '$5 == "/" {print "root:", $6; ok = $6 ~ /^ro(,|$)/} END {exit !ok}' "/proc/$server/mountinfo" ||
  fail "its root can be written"

say "requests from outside, over loopback"
# The image's client, by the image's own loader, as a process of this machine.
client() {
  local library=$root/usr/lib/x86_64-linux-gnu
  "$root/lib64/ld-linux-x86-64.so.2" --library-path "$library:$root/usr/local/cuda/lib64" \
    "$root/usr/local/bin/recurve-client" "$@" --server "127.0.0.1:$grpc"
}
client info
answer=$(client generate --max-new-tokens 2 --prompt "store = {'na': 83, 'fd': 93, 'xq': 41}
assert store['fd'] == ")
[ "$answer" = 93 ] || fail "the demo model answered '$answer', not 93"
echo "the demo model answered $answer"
python3 - "$http" <<'PYTHON'
import json, sys, urllib.request
url = f"http://127.0.0.1:{sys.argv[1]}"
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
chat = json.dumps({"max_tokens": 2, "messages": [
    {"role": "user", "content": "store = {'na': 83, 'fd': 93}\nassert store['fd'] == "}]})
request = urllib.request.Request(url + "/v1/chat/completions", chat.encode(),
                                 {"Content-Type": "application/json"})
message = json.load(opener.open(request, timeout=60))["choices"][0]["message"]
assert message["role"] == "assistant" and message["content"] == "93", message
print("and in a chat:", message["content"])
text = opener.open(url + "/metrics", timeout=10).read().decode()
(line,) = [l for l in text.splitlines() if l.startswith("recurve_generation_tokens_total ")]
assert float(line.split()[1]) >= 2, line
print(line)
PYTHON

say "SIGTERM while a stream runs"
running() {
  client info --json |
    python3 -c 'import json, sys; print(json.load(sys.stdin)["load"]["num_requests_running"])'
}
tokens=8000
client generate --prompt 'import os' --max-new-tokens "$tokens" --ignore-eos --json >"$work/stream" &
stream=$!
pids+=("$stream")
for _ in $(seq 50); do
  [ "$(running)" = 0 ] || break
done
[ "$(running)" = 1 ] || fail "the stream does not run"
kill -TERM "$server"
wait "$stream" || fail "the stream was lost"
python3 - "$work/stream" "$tokens" <<'PYTHON'
import json, sys
answer = json.load(open(sys.argv[1]))
assert len(answer["token_ids"]) == int(sys.argv[2]), len(answer["token_ids"])
assert answer["finish_reason"] == "length", answer["finish_reason"]
print(f"whole: {sys.argv[2]} tokens")
PYTHON
status=0
wait "$runtime" || status=$?
[ "$status" -eq 0 ] || fail "the server ended with status $status"
tail -n 2 "$work/err"
say "proved: $image"
