#!/usr/bin/env bash
# Makes a tarball of the programs that runs on another Linux machine: `./dev
# bundle` builds first and calls this with the folder of the programs, the name
# of the tarball and the programs that it built.
#
#   recurve-VERSION-ARCH/bin   recurve-server, recurve-client, recurve-model, ...
#   recurve-VERSION-ARCH/lib   the shared libraries that they need
#   recurve-VERSION-ARCH/LICENSE
#   recurve-VERSION-ARCH/share where this is Debian or Ubuntu: the licences of the
#                              packages that are in it, and a list of them (SPDX 2.3)
#
# Next to the tarball it writes its digest, TARBALL.sha256.
#
# Not in it: the C library, whose version here the other machine must have at
# least, the GPU's driver, and CUDA's own libraries (cuBLASLt), which are looked
# for in /usr/local/cuda/lib64 and where the loader looks anyway.
set -euo pipefail

programs=$1
tarball=$2
names=("${@:3}")
excluded='^(linux-vdso|ld-linux|libc|libm|libpthread|libdl|librt|libresolv|libnss_[a-z]*|libcuda|libcudart|libcublas|libcublasLt)[.-]'

version=$("$programs/recurve-server" --version | awk '{print $2}')
name=recurve-$version-$(uname -m)
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-0}
staging=$(mktemp -d)
unfinished=$tarball.$$
trap 'rm -rf "$staging" "$unfinished"' EXIT
mkdir -p "$staging/$name/bin" "$staging/$name/lib"
cp "$here/../LICENSE" "$staging/$name/LICENSE"

for program in "${names[@]}"; do
  strip -o "$staging/$name/bin/$program" "$programs/$program"
  if missing=$(ldd "$programs/$program" | grep 'not found'); then
    printf 'bundle: %s lacks libraries on this machine:\n%s\n' "$program" "$missing" >&2
    exit 1
  fi
  ldd "$programs/$program" | awk '$2 == "=>" && $3 ~ /^\// {print $1, $3}' |
    while read -r soname path; do
      [[ $soname =~ $excluded ]] && continue
      [ -e "$staging/$name/lib/$soname" ] && continue
      readlink -f "$path" >>"$staging/files"
      cp -L "$path" "$staging/$name/lib/$soname"
      chmod u+w "$staging/$name/lib/$soname"
      strip --strip-unneeded "$staging/$name/lib/$soname"
    done
done

if command -v dpkg-query >/dev/null; then
  mapfile -t files <"$staging/files"
  "$here/container/sbom.sh" "$version" "$staging/system" "${files[@]}"
  mv "$staging/system/usr/share" "$staging/$name/share"
else
  printf 'bundle: no dpkg-query: the licences of the libraries are not in it\n' >&2
fi

mkdir -p "$(dirname "$tarball")"
# The same files give the same tarball. Renamed when it is whole: what is there under
# its name can be copied.
tar -C "$staging" --sort=name --owner=0 --group=0 --numeric-owner \
  --mtime="@$SOURCE_DATE_EPOCH" -cf - "$name" | xz -T0 "-${XZ_LEVEL:-6}" >"$unfinished"
digest=$(sha256sum <"$unfinished" | cut -d' ' -f1)
mv "$unfinished" "$tarball"
printf '%s  %s\n' "$digest" "$(basename "$tarball")" >"$tarball.sha256"
printf '%s: %s, %s libraries\n' "$tarball" "$(du -h "$tarball" | cut -f1)" \
  "$(find "$staging/$name/lib" -type f | wc -l)"
cublas=$(ldd "$programs/recurve-server" | awk '/libcublasLt/ {print $1}')
if [ -n "$cublas" ]; then
  printf 'built with CUDA: the other machine needs %s, also to run on the CPU\n' "$cublas"
fi
