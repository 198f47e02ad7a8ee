#!/usr/bin/env bash
# Writes the messages of the protos as Python, with the protoc that the C++ build
# uses. Run it after a change of proto/recurve/v1; tests/test_generated.py fails
# until then.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
out=src
protoc -I ../../proto --python_out=$out --pyi_out=$out \
  recurve/v1/inference.proto recurve/v1/control.proto recurve/v1/state.proto
