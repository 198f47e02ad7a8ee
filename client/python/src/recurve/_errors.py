"""The only exception of this package, and the conversion of gRPC's errors."""

from __future__ import annotations

import re
from collections.abc import Iterable

import grpc

from recurve.v1 import control_pb2, inference_pb2, state_pb2

StatusCode = grpc.StatusCode

# Trailing metadata with which a server says when to try again, in milliseconds.
_PUSHBACK = "grpc-retry-pushback-ms"

# How the server's messages begin: "sampling.top_p is 2; expected …",
# "stopping.stop_token_ids has 65 entries; …", "sampling.logit_bias key is 999; …".
_FIELD = re.compile(
    r"(?P<path>(?P<root>[a-z_]+)(?:\.[a-z_]+)*(?:\[\d+\])?)(?: key)? (?:is|has|needs)\b"
)
_REQUESTS = (
    inference_pb2.GenerateRequest.DESCRIPTOR,
    inference_pb2.DecodeRequest.DESCRIPTOR,
    control_pb2.AbortRequest.DESCRIPTOR,
    state_pb2.SnapshotRequest.DESCRIPTOR,
    state_pb2.ForkRequest.DESCRIPTOR,
)
_ROOTS = frozenset(
    name for d in _REQUESTS for name in [*d.fields_by_name, *d.oneofs_by_name]
)


class RecurveError(Exception):
    """A call that failed, or arguments that no call can be made with.

    Attributes:
      code: a `StatusCode`. What each means for this server is listed at the top
        of proto/recurve/v1/inference.proto. This package raises INVALID_ARGUMENT
        for values that fit no request, CANCELLED after `cancel()`, DATA_LOSS
        when the events of a stream do not add up, OUT_OF_RANGE for a rollback to
        a point that is not kept, and FAILED_PRECONDITION for a client or a
        sequence that is closed, or a sequence whose command is not done.
      message: what is wrong; names field, value and limit.
      field: the field of the request at fault, as the proto names it (e.g.
        "sampling.temperature" or "prompt_ids[3]"), or the argument of a
        constructor; None where the error is not about one.
      retry_after: seconds after which the server invites another try; negative:
        it asks not to be tried again; None: it said nothing.
    """

    def __init__(
        self,
        code: grpc.StatusCode,
        message: str,
        field: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(f"{code.name}: {message}")
        self.code = code
        self.message = message
        self.field = field
        self.retry_after = retry_after

    def __reduce__(self) -> tuple[type[RecurveError], tuple[object, ...]]:
        # Exceptions are rebuilt from `args`, which hold the one text.
        return type(self), (self.code, self.message, self.field, self.retry_after)


def invalid(field: str, message: str) -> RecurveError:
    """An argument that the caller must change; `message` follows the field's name."""
    return RecurveError(StatusCode.INVALID_ARGUMENT, f"{field} {message}", field)


def data_loss(message: str) -> RecurveError:
    return RecurveError(StatusCode.DATA_LOSS, message)


def cancelled() -> RecurveError:
    return RecurveError(StatusCode.CANCELLED, "cancelled by the caller")


def closed() -> RecurveError:
    return precondition("the client is closed")


def precondition(message: str) -> RecurveError:
    return RecurveError(StatusCode.FAILED_PRECONDITION, message)


def from_status(
    code: grpc.StatusCode | None,
    details: str | None,
    trailing: Iterable[tuple[str, str | bytes]] | None,
) -> RecurveError:
    """The end of a call that did not end with OK."""
    code = code or StatusCode.UNKNOWN
    message = details or ""
    field = None
    if code == StatusCode.INVALID_ARGUMENT:
        match = _FIELD.match(message)
        if match and match["root"] in _ROOTS:
            field = match["path"]
    retry_after = None
    for key, value in trailing or ():
        if key == _PUSHBACK:
            retry_after = _seconds(value)
    return RecurveError(code, message, field, retry_after)


def from_rpc_error(error: grpc.RpcError) -> RecurveError:
    """The same for an exception of gRPC, which is a call as well."""
    if isinstance(error, grpc.aio.AioRpcError):
        return from_status(error.code(), error.details(), list(error.trailing_metadata()))
    if isinstance(error, grpc.Call):
        return from_status(error.code(), error.details(), error.trailing_metadata())
    return RecurveError(StatusCode.UNKNOWN, str(error))


def _seconds(milliseconds: str | bytes) -> float:
    # By gRPC's rules for retries a value that is not a number means no retry.
    text = milliseconds if isinstance(milliseconds, str) else ""
    return int(text) / 1000 if re.fullmatch(r"\d{1,9}", text) else -1.0
