"""The examples, and the code that the documents show, as a user runs them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

from recurve import Client

HERE = Path(__file__).resolve().parents[1]


def run(*command: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, command)],
        env={**os.environ, "PYTHONPATH": str(HERE / "src")},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [("many.py", [], "assert x['b'] == "), ("logprobs.py", [], " of "),
     ("survive_restart.py", ["300"], "-- 300 tokens")],
)  # fmt: skip
def test_example(address: str, name: str, arguments: list[str], expected: str) -> None:
    done = run(HERE / "examples" / name, address, *arguments)
    assert done.returncode == 0, done.stderr
    assert expected in done.stdout


def test_stream_example(address: str) -> None:
    program = HERE / "examples/stream.py"
    done = run(program, "--server", address, "--tokens", 24)
    assert done.returncode == 0, done.stderr
    assert "return add(a, b" in done.stdout
    done = run(program, "--server", address, "--tokens", 0)
    assert done.returncode == 1
    assert "stopping.max_new_tokens" in done.stderr


def test_every_example_is_tested() -> None:
    names = {p.name for p in (HERE / "examples").glob("*.py")}
    assert names == {"many.py", "logprobs.py", "survive_restart.py", "stream.py"}


@pytest.mark.parametrize(
    ("page", "blocks"),
    [("client/python/README.md", 6), ("docs/python.md", 3), ("README.md", 1)],
)
def test_code_in_the_pages(
    states_client: Client, states_address: str, page: str, blocks: int
) -> None:
    found = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    # The code about TLS and that about two servers name files and servers that only
    # their reader has (the latter is in test_states.py, too); that for OpenAI's client
    # is another test's (tests/e2e/openai_test.py).
    found = [block for block in found if "example.com" not in block and "openai" not in block]
    assert len(found) == blocks
    for block in found:
        done = run("-c", block.replace("127.0.0.1:50051", states_address))
        assert done.returncode == 0, f"{block}\n{done.stderr}"
        assert done.stdout.strip()
        assert states_client.states.list().states == ()  # they leave nothing
