"""Fixtures: the real server with the demo model."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from recurve import Client

ROOT = Path(__file__).resolve().parents[3]
MODEL = ROOT / "deploy/models/demo"


def server_program() -> Path | None:
    """RECURVE_SERVER_PROGRAM, or the newest of what ./dev has built."""
    if named := os.environ.get("RECURVE_SERVER_PROGRAM"):
        return Path(named)
    presets = ("cuda", "cpu", "release")
    found = [ROOT / "build" / preset / "bin/recurve-server" for preset in presets]
    return max((p for p in found if p.exists()), key=lambda p: p.stat().st_mtime, default=None)


class Server:
    """A server process on a free port of the loopback address, or on `port`."""

    def __init__(self, *flags: str, port: int = 0) -> None:
        program = server_program()
        if program is None or not program.exists():
            pytest.skip("recurve-server is not built")
        self.process = subprocess.Popen(
            [program, "--model", MODEL, "--http-port", "-1", "--grpc-port", str(port), *flags],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("listening grpc="), f"the server did not start: {line!r}"
        self.address = line.strip().removeprefix("listening grpc=")

    @property
    def port(self) -> int:
        return int(self.address.rsplit(":", 1)[1])

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def wait(self) -> int:
        return self.process.wait(timeout=60)

    def close(self) -> None:
        if self.process.poll() is None:
            self.kill()
        if self.process.stdout is not None:
            self.process.stdout.close()


@pytest.fixture
def start_server() -> Iterator[Callable[..., Server]]:
    """Starts servers of the test's own."""
    with contextlib.ExitStack() as stack:

        def start(*flags: str, port: int = 0) -> Server:
            server = Server(*flags, port=port)
            stack.callback(server.close)
            return server

        yield start


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    server = Server()
    yield server.address
    server.close()


@pytest.fixture
def client(address: str) -> Iterator[Client]:
    with Client(address, timeout=120) as client:
        yield client


@pytest.fixture(scope="session")
def states_address() -> Iterator[str]:
    """A server that keeps states."""
    server = Server("--prefix-cache-bytes", "256MiB")
    yield server.address
    server.close()


@pytest.fixture
def states_client(states_address: str) -> Iterator[Client]:
    """Without states when the test begins and ends."""
    with Client(states_address, timeout=120) as client:
        assert client.states.list().states == ()
        yield client
        for state in client.states.list().states:
            client.states.release(state)


def wait_until_idle(client: Client) -> None:
    """Until no request holds memory. Fails after a minute."""
    end = time.monotonic() + 60
    while True:
        load = client.load()
        if load.num_requests_running == load.num_requests_waiting == load.open_streams == 0:
            return
        assert time.monotonic() < end, f"the server is still busy: {load}"
        time.sleep(0.01)
