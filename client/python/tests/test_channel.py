"""Addresses, headers and TLS."""

from __future__ import annotations

import asyncio
import pickle
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

import grpc
import pytest
from fake import FakeServer, Try

from recurve import AsyncClient, Client, RecurveError, RetryPolicy, StatusCode, Tls
from recurve._errors import from_status

NO_RETRY = RetryPolicy(max_attempts=1)


@pytest.mark.parametrize("server", ["", "host", "host:0", "host:65536", "a b:1", "::1:5", "h:1/x",
                                    "h:+1", "h:١", None, 50051])  # fmt: skip
@pytest.mark.parametrize("cls", [Client, AsyncClient])
def test_addresses_are_checked(cls: Any, server: Any) -> None:
    with pytest.raises(RecurveError) as error:
        cls(server)
    assert error.value.code == StatusCode.INVALID_ARGUMENT
    assert error.value.field == "server"


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), 1e18, "5", True])
@pytest.mark.parametrize("cls", [Client, AsyncClient])
def test_timeouts_are_checked(cls: Any, timeout: Any) -> None:
    with pytest.raises(RecurveError) as error:
        cls(timeout=timeout)
    assert error.value.field == "timeout"
    assert str(timeout) in error.value.message


def test_a_closed_client_says_so() -> None:
    client = Client("localhost:1")
    client.close()
    for call in (lambda: client.generate("a"), client.load, client.health):
        with pytest.raises(RecurveError, match="the client is closed") as error:
            call()
        assert error.value.code == StatusCode.FAILED_PRECONDITION

    async def main() -> None:
        # A call under way ends: a server that never says a word.
        with socket.create_server(("127.0.0.1", 0)) as silent:
            aclient = AsyncClient(f"127.0.0.1:{silent.getsockname()[1]}")
            call = asyncio.create_task(aclient.load())
            await asyncio.sleep(0.2)
            await aclient.close()
            with pytest.raises(RecurveError) as error:
                await call
        assert error.value.code == StatusCode.CANCELLED
        with pytest.raises(RecurveError, match="the client is closed"):
            aclient.generate("a")
        with pytest.raises(RecurveError, match="the client is closed"):
            await aclient.load()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("name", "value"),
    [("api_key", 5), ("api_key", ""), ("metadata", 5), ("metadata", {"a": 1}), ("tls", "x"),
     ("retry", None), ("max_receive_bytes", "x"), ("max_receive_bytes", 0)],
)  # fmt: skip
@pytest.mark.parametrize("cls", [Client, AsyncClient])
def test_arguments_of_other_types_are_named(cls: Any, name: str, value: object) -> None:
    with pytest.raises(RecurveError) as error:
        cls(**{name: value})
    assert error.value.code == StatusCode.INVALID_ARGUMENT
    assert error.value.field == name


@pytest.mark.parametrize("server", ["localhost:1", "[::1]:65535", "unix:1"])
def test_addresses(server: str) -> None:
    Client(server).close()


@pytest.mark.parametrize("metadata", [{"Key": "x"}, {"a b": "x"}, {"k-bin": "x"}, {"grpc-x": "x"},
                                      {"k": "a\nb"}, {"k": "schlüssel"}])  # fmt: skip
def test_metadata_is_checked(metadata: dict[str, str]) -> None:
    with pytest.raises(RecurveError) as error:
        Client(metadata=metadata)
    assert error.value.field == "metadata"
    assert "schl" not in error.value.message


def test_metadata_is_sent_with_every_call() -> None:
    metadata = {"authorization": "Bearer secret", "x-tenant": "7"}

    async def main(address: str) -> None:
        async with AsyncClient(address, metadata=metadata) as client:
            await client.generate([1]).result()
            await client.model_info()

    with FakeServer([Try(tokens=1)]) as server:
        with Client(server.address, metadata=metadata) as client:
            client.generate([1]).result()
            client.model_info()
        asyncio.run(main(server.address))
        assert len(server.metadata) == 4
        for received in server.metadata:
            assert received.items() >= metadata.items()


@pytest.mark.parametrize("cls", [Client, AsyncClient])
@pytest.mark.parametrize(("api_key", "metadata"), [("", {}), ("a b", {}), ("a\n", {}), ("é", {}),
                                                   ("k", {"authorization": "x"})])  # fmt: skip
def test_api_keys_are_checked(cls: Any, api_key: str, metadata: dict[str, str]) -> None:
    with pytest.raises(RecurveError) as error:
        cls(api_key=api_key, metadata=metadata)
    assert error.value.field == "api_key"


def test_the_api_key_is_sent_with_every_call() -> None:
    async def main(address: str) -> None:
        async with AsyncClient(address, api_key="k-1") as client:
            await client.generate([1]).result()
            await client.model_info()

    with FakeServer([Try(tokens=1)]) as server:
        with Client(server.address, api_key="k-1", metadata={"x": "y"}) as client:
            client.generate([1]).result()
            client.model_info()
        asyncio.run(main(server.address))
        assert len(server.metadata) == 4
        for received in server.metadata:
            assert received["authorization"] == "Bearer k-1"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    """A self-signed certificate of "recurve.test", for both sides."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    folder: Path = tmp_path_factory.mktemp("tls")
    key, certificate = folder / "key.pem", folder / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", key, "-out",
         certificate, "-days", "2", "-subj", "/CN=recurve.test",
         "-addext", "subjectAltName=DNS:recurve.test"],
        check=True, capture_output=True,
    )  # fmt: skip
    return Tls(ca=certificate, certificate=certificate, key=key, server_name="recurve.test")


def credentials(tls: Tls, mutual: bool) -> grpc.ServerCredentials:
    assert tls.key and tls.certificate
    chain = Path(tls.certificate).read_bytes()
    pair = (Path(tls.key).read_bytes(), chain)
    return grpc.ssl_server_credentials([pair], chain if mutual else None, mutual)


def test_tls(certificate: Tls) -> None:
    async def main(address: str, tls: Tls) -> None:
        async with AsyncClient(address, tls=tls, retry=NO_RETRY, timeout=60) as client:
            assert (await client.model_info()).name == "fake"

    trusting = Tls(ca=certificate.ca, server_name="recurve.test")
    with FakeServer([Try()], credentials=credentials(certificate, mutual=False)) as server:
        with Client(server.address, tls=trusting, retry=NO_RETRY, timeout=60) as client:
            assert client.model_info().name == "fake"
        asyncio.run(main(server.address, trusting))
        wrong = [None, Tls(), Tls(ca=certificate.ca), Tls(ca=certificate.ca, server_name="other")]
        for tls in wrong:
            with Client(server.address, tls=tls, retry=NO_RETRY, timeout=60) as client:
                with pytest.raises(RecurveError) as error:
                    client.model_info()
                assert error.value.code == StatusCode.UNAVAILABLE


def test_mutual_tls(certificate: Tls) -> None:
    with FakeServer([Try()], credentials=credentials(certificate, mutual=True)) as server:
        with Client(server.address, tls=certificate, retry=NO_RETRY, timeout=60) as client:
            assert client.model_info().name == "fake"
        anonymous = Tls(ca=certificate.ca, server_name="recurve.test")
        with Client(server.address, tls=anonymous, retry=NO_RETRY, timeout=60) as client:
            with pytest.raises(RecurveError) as error:
                client.model_info()
            assert error.value.code == StatusCode.UNAVAILABLE


@pytest.mark.parametrize(
    ("tls", "field"),
    [(Tls(ca="/nowhere/ca.pem"), "tls.ca"), (Tls(certificate="/nowhere/c"), "tls")],
)
def test_tls_files_are_checked(tls: Tls, field: str) -> None:
    with pytest.raises(RecurveError) as error:
        Client(tls=tls)
    assert error.value.field == field


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ("sampling.top_p is 2; expected above 0, at most 1", "sampling.top_p"),
        ("sampling.logit_bias[7] is 101; expected", "sampling.logit_bias[7]"),
        ("sampling.logit_bias key is 300; the vocabulary", "sampling.logit_bias"),
        ("prompt is not set; expected prompt_ids or prompt_text", "prompt"),
        ("the request is no valid message of this method", None),
        ("the sequence would reach 0 + 1 + 9 tokens", None),
        ("proxy is not amused", None),
        ("", None),
    ],
)
def test_the_field_of_a_message(message: str, field: str | None) -> None:
    assert from_status(StatusCode.INVALID_ARGUMENT, message, ()).field == field
    assert from_status(StatusCode.UNAVAILABLE, message, ()).field is None


def test_errors_can_be_pickled() -> None:
    error = RecurveError(StatusCode.UNAVAILABLE, "gone", "field", 1.5)
    copy = pickle.loads(pickle.dumps(error))
    assert vars(copy) == vars(error)
    assert str(copy) == "UNAVAILABLE: gone"
