#!/usr/bin/env bash
# Lays out the files of the image: the Dockerfile calls this with the folder of the
# programs, a new folder, and yes or no: whether it renders chat templates.
#
#   system    shared libraries at the paths where the loader found them here,
#             certificates, passwd and group, licences, and a list of all packages:
#             /usr/share/sbom/recurve.spdx.json
#   python    Python, as much of it as renders chat templates
#   model     /models/demo
#   programs  /usr/local/bin
#
# Every file has the time SOURCE_DATE_EPOCH.
set -euo pipefail

programs=$1
image=$2
chat=$3
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-0}
export LC_ALL=C

umask 022
[ ! -e "$image" ] || { echo "pack: $image exists" >&2; exit 1; }
mkdir -p "$image"/{system,python,model,programs}
system=$image/system

# As on a Debian system, where /lib is a link.
mkdir -p "$system/usr/lib" "$system/usr/lib64" "$system/etc/ssl/certs" "$system/tmp" "$system/models"
chmod 1777 "$system/tmp"
ln -s usr/lib "$system/lib"
ln -s usr/lib64 "$system/lib64"

files=()  # where libraries and modules were found, links resolved
# copy FOLDER PATH: as it is here; /lib/... is /usr/lib/...
copy() {
  local path=$2
  case $path in /lib/*|/lib64/*) path=/usr$path ;; esac
  files+=("$(readlink -f "$path")")
  [ ! -e "$1$path" ] || return 0
  mkdir -p "$1$(dirname "$path")"
  cp -L "$path" "$1$path"
}
# libraries FOLDER PROGRAM: those it needs
libraries() {
  if ldd "$2" | grep 'not found' >&2; then
    echo "pack: $2 lacks the libraries above" >&2
    exit 1
  fi
  local path
  while read -r path; do
    copy "$1" "$path"
  done < <(ldd "$2" | sed -nE 's/^(.* => )?[[:space:]]*(\/[^ ]+) \(0x.*/\2/p')
}

mkdir -p "$image/programs/usr/local/bin"
for program in recurve-server recurve-client recurve-model; do
  strip -o "$image/programs/usr/local/bin/$program" "$programs/$program"
  libraries "$system" "$programs/$program"
done
if [ "$chat" = yes ]; then
  # What the process that renders has imported: it opens nothing later.
  python=$(readlink -f /usr/bin/python3)
  modules=$(LC_ALL=C.UTF-8 "$python" -I -B - "$here/../../server/chat" <<'PYTHON'
import os, sys
sys.path.append(sys.argv[1])
import render_chat
assert render_chat.jinja2, render_chat.IMPORT_ERROR
render_chat.load_what_loads_late()
for module in sys.modules.values():
    path = getattr(module, "__file__", None)
    if path and os.path.isfile(path) and not path.startswith(sys.argv[1]):
        print(path)
PYTHON
  )
  for path in "$python" $modules; do
    copy "$image/python" "$path"
    case $path in "$python"|*.so) libraries "$system" "$path" ;; esac
  done
  ln -s "$(basename "$python")" "$image/python/usr/bin/python3"
  # Without this folder, Python says that it is not whole.
  mkdir -p "$image/python/usr/lib/$(basename "$python")/lib-dynload"
fi
find "$system" "$image/python" -type f \( -name '*.so*' -o -path '*/bin/*' \) -exec chmod 755 {} +

certificates=/etc/ssl/certs/ca-certificates.crt
cp -L "$certificates" "$system$certificates"
printf 'root:x:0:0:root:/:/\nrecurve:x:65532:65532:recurve:/:/\n' >"$system/etc/passwd"
printf 'root:x:0:\nrecurve:x:65532:\n' >"$system/etc/group"
# Names by file and DNS; both are in the C library.
printf 'hosts: files dns\n' >"$system/etc/nsswitch.conf"

mkdir -p "$image/model/models"
cp -r "$here/../models/demo" "$image/model/models/demo"
chmod -R u=rwX,go=rX "$image/model"

mkdir -p "$image/programs/usr/share/doc/recurve"
cp "$here/../../LICENSE" "$image/programs/usr/share/doc/recurve/copyright"

version=$("$programs/recurve-server" --version | awk '{print $2}')
"$here/sbom.sh" "$version" "$system" package:ca-certificates "${files[@]}"

find "$image" -depth -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
du -sh "$image"/*
