"""Runs the tests for CTest. Argument: the program recurve-server. Exit status 77,
and a line that says why, where grpcio, protobuf or pytest are missing or, as the
packages of Debian 12 and Ubuntu 24.04 are, older than the client needs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

if sys.version_info < (3, 11):
    print(f"skipped: Python is {sys.version.split()[0]}, the client needs 3.11")
    sys.exit(77)
# Nothing is written into the source tree.
sys.dont_write_bytecode = True
try:
    import google.protobuf  # noqa: F401
    import grpc  # noqa: F401
    import pytest
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)
# As pyproject.toml has them.
for name, version, least in (
    ("grpcio", grpc.__version__, "1.60"),
    ("protobuf", google.protobuf.__version__, "4.22"),
):
    if [int(x) for x in version.split(".")[:2]] < [int(x) for x in least.split(".")]:
        print(f"skipped: {name} is {version}, the client needs {least}")
        sys.exit(77)

os.environ["RECURVE_SERVER_PROGRAM"] = sys.argv[1]
os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
folder = Path(__file__).resolve().parent
sys.exit(pytest.main(["-q", "-ra", "-p", "no:cacheprovider", f"--rootdir={folder.parent}",
                      "-c", str(folder.parent / "pyproject.toml"), str(folder)]))  # fmt: skip
