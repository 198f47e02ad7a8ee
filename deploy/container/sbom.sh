#!/usr/bin/env bash
# Writes what an image or a bundle consists of, as SPDX 2.3 in JSON, into
# usr/share/sbom/recurve.spdx.json of the folder SYSTEM, and the licences of its
# packages into usr/share/doc.
#
#   sbom.sh VERSION SYSTEM (FILE | package:NAME)...
#
# FILE... are files of this machine that were copied: libraries, and Python's. Each is
# traced to the package that owns it; one without a package is listed by itself with
# its digest. NAME is a package that no file tells. The packages with headers and templates that were compiled into the
# programs are listed too.
set -euo pipefail

version=$1
system=$2
shift 2
export LC_ALL=C

# Packages whose code is compiled into the programs.
compiled_in=(libabsl-dev libboost-dev libcli11-dev libgrpc++-dev libhwy-dev
  libprotobuf-dev libspdlog-dev libstdc++-dev nlohmann-json3-dev prometheus-cpp-dev)

packages=()
orphans=()
for file in $(printf '%s\n' "$@" | sort -u); do
  if [[ $file == package:* ]]; then
    packages+=("${file#package:}")
    continue
  fi
  # The database may name a file below /lib that is found below /usr/lib.
  if owner=$(dpkg-query -S "$file" 2>/dev/null || dpkg-query -S "${file#/usr}" 2>/dev/null); then
    packages+=("${owner%%: /*}")
  else
    orphans+=("$file")
  fi
done
for package in "${compiled_in[@]}"; do
  # libstdc++-dev has the compiler's version in its name. One that is not there was
  # not compiled in.
  name=$({ dpkg-query -W -f='${db:Status-Abbrev} ${Package}\n' "${package/-dev/*-dev}" 2>/dev/null ||
    true; } | awk '$1 == "ii" && !found {print $2; found = 1}')
  [ -z "$name" ] || packages+=("$name")
done
mapfile -t packages < <(printf '%s\n' "${packages[@]}" | sort -u)

created=$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)
distribution=$(. /etc/os-release && printf %s "$ID")
elements=()
relations=()
# add NAME VERSION SUPPLIER PURL SHA256
add() {
  local id="SPDXRef-Package-$((${#elements[@]} + 1))" entry
  entry="{\"SPDXID\": \"$id\", \"name\": \"$1\", \"supplier\": \"$3\", "
  [ -z "$2" ] || entry+="\"versionInfo\": \"$2\", "
  entry+="\"downloadLocation\": \"NOASSERTION\", \"filesAnalyzed\": false, "
  entry+="\"licenseConcluded\": \"NOASSERTION\", \"licenseDeclared\": \"NOASSERTION\", "
  entry+="\"copyrightText\": \"NOASSERTION\""
  [ -z "$4" ] || entry+=", \"externalRefs\": [{\"referenceCategory\": \"PACKAGE-MANAGER\", \"referenceType\": \"purl\", \"referenceLocator\": \"$4\"}]"
  [ -z "$5" ] || entry+=", \"checksums\": [{\"algorithm\": \"SHA256\", \"checksumValue\": \"$5\"}]"
  elements+=("$entry}")
  relations+=("{\"spdxElementId\": \"SPDXRef-Recurve\", \"relationshipType\": \"DEPENDS_ON\", \"relatedSpdxElement\": \"$id\"}")
}

for package in "${packages[@]}"; do
  IFS='|' read -r name release architecture < <(
    dpkg-query -W -f='${Package}|${Version}|${Architecture}\n' "$package")
  # `+` and `:` are escaped in a package URL.
  escaped=${name//+/%2B} escaped_release=${release//+/%2B}
  add "$name" "$release" "Organization: $distribution" \
    "pkg:deb/$distribution/$escaped@${escaped_release//:/%3A}?arch=$architecture" ""
  licence=/usr/share/doc/$name/copyright
  if [ -e "$licence" ]; then
    mkdir -p "$system/usr/share/doc/$name"
    cp -L "$licence" "$system/usr/share/doc/$name/copyright"
    chmod 644 "$system/usr/share/doc/$name/copyright"
  else
    echo "sbom: $name has no $licence" >&2
  fi
done
for file in "${orphans[@]}"; do
  add "$(basename "$file")" "" "NOASSERTION" "" "$(sha256sum "$file" | cut -d' ' -f1)"
done

join() { local IFS=$'\n'; sed '$!s/$/,/; s/^/    /' <<<"$*"; }
mkdir -p "$system/usr/share/sbom"
cat >"$system/usr/share/sbom/recurve.spdx.json" <<JSON
{
  "spdxVersion": "SPDX-2.3",
  "dataLicense": "CC0-1.0",
  "SPDXID": "SPDXRef-DOCUMENT",
  "name": "recurve-$version",
  "documentNamespace": "urn:recurve:sbom:$version:$(printf '%s\n' "${elements[@]}" | sha256sum | cut -c1-32)",
  "creationInfo": {"created": "$created", "creators": ["Tool: recurve-deploy-container-sbom"]},
  "documentDescribes": ["SPDXRef-Recurve"],
  "packages": [
    {"SPDXID": "SPDXRef-Recurve", "name": "recurve", "versionInfo": "$version", "supplier": "NOASSERTION", "downloadLocation": "NOASSERTION", "filesAnalyzed": false, "licenseConcluded": "Apache-2.0", "licenseDeclared": "Apache-2.0", "copyrightText": "NOASSERTION", "primaryPackagePurpose": "APPLICATION"},
$(join "${elements[@]}")
  ],
  "relationships": [
    {"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES", "relatedSpdxElement": "SPDXRef-Recurve"},
$(join "${relations[@]}")
  ]
}
JSON
echo "sbom: ${#packages[@]} packages, ${#orphans[@]} files of no package"
