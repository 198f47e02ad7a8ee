#!/usr/bin/env bash
# Makes a tarball of the programs that runs on another Linux machine: `./dev
# bundle` builds first and calls this with the folder of the programs, the name
# of the tarball and the programs that it built.
#
#   recurve-VERSION-ARCH/bin   recurve-server, recurve-client, recurve-model, ...
#   recurve-VERSION-ARCH/lib   the shared libraries that they need
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
staging=$(mktemp -d)
trap 'rm -rf "$staging"' EXIT
mkdir -p "$staging/$name/bin" "$staging/$name/lib"

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
      cp -L "$path" "$staging/$name/lib/$soname"
      chmod u+w "$staging/$name/lib/$soname"
      strip --strip-unneeded "$staging/$name/lib/$soname"
    done
done

mkdir -p "$(dirname "$tarball")"
# The same files give the same tarball.
tar -C "$staging" --sort=name --owner=0 --group=0 --numeric-owner \
  --mtime="@${SOURCE_DATE_EPOCH:-0}" -cf - "$name" | xz -T0 "-${XZ_LEVEL:-6}" >"$tarball"
printf '%s: %s, %s libraries\n' "$tarball" "$(du -h "$tarball" | cut -f1)" \
  "$(find "$staging/$name/lib" -type f | wc -l)"
cublas=$(ldd "$programs/recurve-server" | awk '/libcublasLt/ {print $1}')
if [ -n "$cublas" ]; then
  printf 'built with CUDA: the other machine needs %s, also to run on the CPU\n' "$cublas"
fi
