"""The channel to the server."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import grpc

from recurve import _proxy
from recurve._errors import RecurveError, StatusCode, invalid

Metadata = tuple[tuple[str, str], ...]

_SERVER = re.compile(r"(\[[^\[\]/\s]+\]|[^:\[\]/\s]+):([0-9]{1,5})")


@dataclass(frozen=True)
class Tls:
    """TLS to the server. Each file is PEM.

    Attributes:
      ca: certificates that may sign the server's; None: gRPC's default roots.
      certificate, key: the client's own, for mutual TLS; both or neither.
      server_name: the name that the server's certificate must have, where it is
        not the host that is connected to.
    """

    ca: str | os.PathLike[str] | None = None
    certificate: str | os.PathLike[str] | None = None
    key: str | os.PathLike[str] | None = None
    server_name: str | None = None

    def credentials(self) -> grpc.ChannelCredentials:
        if (self.certificate is None) != (self.key is None):
            raise invalid("tls", "has one of certificate and key; expected both or neither")
        return grpc.ssl_channel_credentials(
            root_certificates=_read("tls.ca", self.ca),
            private_key=_read("tls.key", self.key),
            certificate_chain=_read("tls.certificate", self.certificate),
        )


def target(server: str) -> str:
    """gRPC's name for HOST:PORT."""
    match = _SERVER.fullmatch(server) if isinstance(server, str) else None
    if not match or not 1 <= int(match[2]) <= 65535:
        raise RecurveError(
            StatusCode.INVALID_ARGUMENT,
            f"server: {server!r} is not HOST:PORT with a port of 1 to 65535 "
            "(an IPv6 address goes in brackets)",
            "server",
        )
    # The explicit scheme stops gRPC from parsing the host as another scheme.
    return f"dns:///{server}"


def options(
    server: str, tls: Tls | None, max_receive_bytes: int
) -> list[tuple[str, int | str]]:
    """Options of the channel to `server`, which `target` has accepted."""
    if tls is not None and not isinstance(tls, Tls):
        raise invalid("tls", f"is {tls!r}; expected a Tls, or None")
    if not isinstance(max_receive_bytes, int) or not 0 < max_receive_bytes < 1 << 31:
        raise invalid(
            "max_receive_bytes", f"is {max_receive_bytes!r}; expected an int, 1 to {(1 << 31) - 1}"
        )
    result: list[tuple[str, int | str]] = [
        ("grpc.max_receive_message_length", max_receive_bytes),
        # Delay before a lost connection is tried again. gRPC's own default of 1 to 120
        # seconds would make most of our retries fail without trying.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 5000),
    ]
    host, _, port = server.rpartition(":")
    if _proxy.direct(host, int(port)):
        result.append(("grpc.enable_http_proxy", 0))
    if tls is not None and tls.server_name is not None:
        result.append(("grpc.ssl_target_name_override", tls.server_name))
    return result


def check_metadata(metadata: Mapping[str, str], api_key: str | None = None) -> Metadata:
    """The headers of every call, refused here rather than in each call."""
    if not isinstance(metadata, Mapping):
        raise invalid("metadata", f"is a {type(metadata).__name__}; expected a mapping")
    for key, value in metadata.items():
        # Does not quote the text: it may be a secret.
        if not isinstance(key, str) or not isinstance(value, str):
            raise invalid("metadata", f"has the key {key!r}; expected text for text")
        if not re.fullmatch(r"[a-z0-9_.-]+", key) or key.endswith("-bin"):
            raise invalid("metadata", f"has the key {key!r}; expected a-z, 0-9, '_', '-', '.'")
        if key.startswith("grpc-"):
            raise invalid("metadata", f"has the key {key!r}; 'grpc-' is gRPC's own")
        if not re.fullmatch(r"[\x20-\x7e]*", value):
            raise invalid("metadata", f"has a value of {key!r} that is not printable ASCII")
    if api_key is None:
        return tuple(metadata.items())
    if not isinstance(api_key, str) or not re.fullmatch(r"[\x21-\x7e]+", api_key):
        raise invalid("api_key", "is not text of one or more printable ASCII characters")
    if "authorization" in metadata:
        raise invalid("api_key", "is given together with metadata 'authorization'")
    return (*metadata.items(), ("authorization", f"Bearer {api_key}"))


def metadata_bytes(metadata: Metadata) -> int:
    """As HTTP/2 counts them, including about as much as gRPC itself adds."""
    return 512 + sum(len(key) + len(value) + 32 for key, value in metadata)


def _read(field: str, path: str | os.PathLike[str] | None) -> bytes | None:
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise invalid(field, f"cannot be read: {error}") from None
