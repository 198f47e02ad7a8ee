#!/usr/bin/env bash
# Lays out the files of the image: the Dockerfile calls this with the folder of the
# programs and a new folder.
#
#   system    shared libraries at the paths where the loader found them here,
#             certificates, passwd and group, licences, and a list of all packages:
#             /usr/share/sbom/recurve.spdx.json
#   model     /models/demo
#   programs  /usr/local/bin
#
# Every file has the time SOURCE_DATE_EPOCH.
set -euo pipefail

programs=$1
image=$2
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-0}
export LC_ALL=C

umask 022
[ ! -e "$image" ] || { echo "pack: $image exists" >&2; exit 1; }
mkdir -p "$image"/{system,model,programs}
system=$image/system

# As on a Debian system, where /lib is a link.
mkdir -p "$system/usr/lib" "$system/usr/lib64" "$system/etc/ssl/certs" "$system/tmp" "$system/models"
chmod 1777 "$system/tmp"
ln -s usr/lib "$system/lib"
ln -s usr/lib64 "$system/lib64"

mkdir -p "$image/programs/usr/local/bin"
files=()  # where libraries were found, links resolved
for program in recurve-server recurve-client recurve-model; do
  strip -o "$image/programs/usr/local/bin/$program" "$programs/$program"
  if ldd "$programs/$program" | grep 'not found' >&2; then
    echo "pack: $program lacks the libraries above" >&2
    exit 1
  fi
  while read -r path; do
    # /lib/... is /usr/lib/...
    case $path in /lib/*|/lib64/*) path=/usr$path ;; esac
    files+=("$(readlink -f "$path")")
    [ ! -e "$system$path" ] || continue
    mkdir -p "$system$(dirname "$path")"
    cp -L "$path" "$system$path"
    chmod 755 "$system$path"
  done < <(ldd "$programs/$program" | sed -nE 's/^(.* => )?[[:space:]]*(\/[^ ]+) \(0x.*/\2/p')
done

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
