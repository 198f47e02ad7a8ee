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

from recurve import AsyncClient, Client, RecurveError, RetryPolicy, StatusCode, Tls, _proxy
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


@pytest.mark.parametrize("host", ["localhost", "LocalHost.", "a.localhost", "127.0.0.1", "127.1",
                                  "127.255.255.255", "0.0.0.0", "[::1]", "[::]",
                                  "[::ffff:127.0.0.1]", "[::1%lo]"])  # fmt: skip
def test_this_machine(host: str) -> None:
    assert _proxy.is_this_machine(host)


@pytest.mark.parametrize("host", ["localhost.example", "notlocalhost", "128.0.0.1", "[::2]",
                                  "127.0.0.1.example", "[::ffff:10.0.0.1]"])  # fmt: skip
def test_other_machines(host: str) -> None:
    assert not _proxy.is_this_machine(host)


@pytest.mark.parametrize(
    ("listed", "host", "matches"),
    [
        ("*", "a.example", True),
        ("b, *", "a.example", True),
        ("", "a.example", False),
        (",, ", "a.example", False),
        ("EXAMPLE.", "a.example", True),
        (".example", "example", True),
        ("*.example", "b.a.example", True),
        ("ample", "a.example", False),
        ("a.example", "example", False),
        ("a.example:50051", "a.example", True),
        ("a.example:50052", "a.example", False),
        (".", "a.example", False),
        ("10.1.2.3:50051", "10.1.2.3", True),
        ("10.1.2.3:1", "10.1.2.3", False),
        ("2.3", "10.1.2.3", False),
        ("10.1.0.0/16", "10.1.2.3", True),
        ("10.1.2.4/31", "10.1.2.3", False),
        ("10.1.0.0/33", "10.1.2.3", False),
        ("10.1.0.0/", "10.1.2.3", False),
        ("10.1.0.0/16", "a.example", False),
        ("[fd00:0::1]:50051", "[fd00::1]", True),
        ("fd00::1", "[fd00::1]", True),
        ("fd00::/8", "[fd12::1]", True),
        ("fd00::/16", "[fd12::1]", False),
        ("::/0", "10.1.2.3", False),
    ],
)
def test_no_proxy(listed: str, host: str, matches: bool) -> None:
    assert _proxy.matches(listed, host, 50051) is matches


def without_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("grpc_proxy", "https_proxy", "http_proxy", "no_grpc_proxy", "no_proxy",
                 "NO_PROXY"):  # fmt: skip
        monkeypatch.delenv(name, raising=False)


def test_no_proxy_is_asked_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(server: str) -> None:
        async with AsyncClient(server, retry=NO_RETRY, timeout=60) as client:
            assert (await client.model_info()).name == "fake"

    without_proxies(monkeypatch)
    with FakeServer([Try()]) as server:
        for name in ("grpc_proxy", "https_proxy", "http_proxy"):
            monkeypatch.setenv(name, "http://127.0.0.1:9")  # no listener
        with Client(server.address, retry=NO_RETRY, timeout=60) as client:
            assert client.model_info().name == "fake"
        asyncio.run(main(server.address))


def test_a_proxy_is_asked_for_others_but_those_of_no_proxy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    without_proxies(monkeypatch)
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        proxy.settimeout(60)
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.getsockname()[1]}")
        monkeypatch.setenv("NO_PROXY", "other")
        with Client("recurve.invalid:50051", retry=NO_RETRY, timeout=1) as client:
            with pytest.raises(RecurveError):
                client.model_info()
            with proxy.accept()[0] as asked:
                assert asked.recv(512).startswith(b"CONNECT recurve.invalid:50051 ")
        while True:  # what else that client has asked
            proxy.settimeout(1)
            try:
                proxy.accept()[0].close()
            except TimeoutError:
                break
        monkeypatch.setenv("NO_PROXY", "other,.invalid")
        with Client("recurve.invalid:50051", retry=NO_RETRY, timeout=1) as client:
            with pytest.raises(RecurveError):
                client.model_info()
        proxy.setblocking(False)
        with pytest.raises(BlockingIOError):
            proxy.accept()


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
