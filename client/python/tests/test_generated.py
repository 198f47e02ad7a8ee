"""The generated messages are those of the protos."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import ROOT
from google.protobuf import descriptor_pb2

HERE = Path(__file__).resolve().parents[1]
FILES = ["inference", "control", "state"]


@pytest.mark.parametrize("name", FILES)
def test_messages_are_current(name: str, tmp_path: Path) -> None:
    """By their meaning, so that any version of protoc can tell."""
    if shutil.which("protoc") is None:
        pytest.skip("protoc is not installed")
    out = tmp_path / "set"
    path = f"recurve/v1/{name}.proto"
    subprocess.run(
        ["protoc", "-I", ROOT / "proto", f"--descriptor_set_out={out}", path], check=True
    )
    expected = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file[0]
    found = descriptor_pb2.FileDescriptorProto()
    module = importlib.import_module(f"recurve.v1.{name}_pb2")
    found.ParseFromString(module.DESCRIPTOR.serialized_pb)
    # protoc writes these into sets only.
    for message in expected.message_type:
        for part in [message, *message.nested_type]:
            for field in part.field:
                field.ClearField("json_name")
    assert found == expected, "run client/python/generate.sh"


@pytest.mark.parametrize("name", FILES)
def test_types_are_current(name: str) -> None:
    """Names each message and field of the proto, also where protoc is missing."""
    text = (HERE / f"src/recurve/v1/{name}_pb2.pyi").read_text()
    module = importlib.import_module(f"recurve.v1.{name}_pb2")
    for message in module.DESCRIPTOR.message_types_by_name.values():
        start = text.index(f"class {message.name}(_message.Message)")
        end = text.find("\nclass ", start + 1)
        declared = set(re.findall(r"^    ([a-z]\w*): ", text[start:end], re.MULTILINE))
        assert declared == set(message.fields_by_name), message.name


def test_version_is_that_of_the_server() -> None:
    project = re.search(r"project\(recurve VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text())
    package = re.search(r'^version = "(.*)"', (HERE / "pyproject.toml").read_text(), re.MULTILINE)
    assert project and package and project[1] == package[1]
