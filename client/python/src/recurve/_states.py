"""States, for the blocking client; and what it shares with the one for asyncio."""

from __future__ import annotations

import builtins
import contextlib
import os
import tempfile
import time
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import grpc

from recurve import _rpc
from recurve._errors import RecurveError, cancelled, closed, from_rpc_error, invalid
from recurve._pipe import Pipe
from recurve._request import State, build_state_options, set_field, state_key
from recurve._retry import RetryPolicy
from recurve._types import StateInfo, StateList, from_message
from recurve.v1 import inference_pb2, state_pb2

if TYPE_CHECKING:
    from recurve._sync import Client

# Bytes of a piece of Import at most; the server takes messages to 4 MiB.
PIECE_BYTES = 1 << 20

# For calls that make or change states: a repeat could make two, and a name that is
# taken, or a lack of room, does not pass by itself.
ONCE = RetryPolicy(max_attempts=1)

# Pieces that wait for the network at most.
_MAX_WAITING = 2

# Seconds for a release that nothing depends on.
DROP_TIMEOUT = 10.0


class States:
    """The states of the caller's tenant: `Client.states`.

    A state is what a sequence is between two commands. It never changes; any number
    of requests may continue it (`from_state`). One that is not pinned is released when
    nothing has used it for its time to live. A state is named by its id, its name, or
    a `StateInfo`; times are in seconds.

    Methods raise RecurveError: NOT_FOUND for a state that is not there (any more),
    FAILED_PRECONDITION where the server keeps no states. `pin`, `fork` and `import_`
    are tried once, since a repeat could make two states; the others as `RetryPolicy`
    says.

    Thread safety: all methods may be called from any thread.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    def get(self, state: State, *, timeout: float | None = None) -> StateInfo:
        """What the server knows about a state. No use: the time to live goes on."""
        request = state_pb2.GetStateRequest(state=state_key(state, "state"))
        return from_message(StateInfo, self._client._unary(_rpc.GET_STATE, request, timeout))

    def list(self, *, timeout: float | None = None) -> StateList:
        """The tenant's states, the latest first, and the memory that they take."""
        request = state_pb2.ListStatesRequest()
        return state_list(self._client._unary(_rpc.LIST_STATES, request, timeout))

    def pin(
        self,
        state: State,
        *,
        name: str | None = None,
        ttl: float | None = None,
        pinned: bool | None = None,
        timeout: float | None = None,
    ) -> StateInfo:
        """Pins a state; with `ttl`, unpins it and gives it that time to live from now.

        Args:
          name: a new name; None: as it is. RESOURCE_EXHAUSTED if another state has it.
          ttl: seconds, above 0, at most 604800.
          pinned: None: unless `ttl` is given. False: unpins, with the time to live that
            it had.
        """
        request = pin_request(state, name, ttl, pinned)
        return from_message(StateInfo, self._client._unary(_rpc.PIN_STATE, request, timeout, ONCE))

    def release(self, state: State, *, timeout: float | None = None) -> None:
        """Forgets a state. Sequences that continue it go on."""
        request = state_pb2.ReleaseStateRequest(state=state_key(state, "state"))
        self._client._unary(_rpc.RELEASE_STATE, request, timeout)

    def fork(
        self,
        state: State,
        n: int,
        *,
        at: int | None = None,
        seed: int | None = None,
        ttl: float | None = None,
        timeout: float | None = None,
    ) -> builtins.list[StateInfo]:
        """`n` (1 to 16) states of one, which share its memory. Each has a seed of its own,
        derived from `seed` (None: drawn), for requests that name none. With `at` they
        are of its first tokens only, as many as that.
        """
        return self._make_fork(fork_request(state, n, at, seed, ttl), timeout)

    def export(
        self, state: State, *, timeout: float | None = None
    ) -> Generator[bytes, None, None]:
        """The state as bytes, in pieces below 4 MiB. The call begins with the first
        piece and ends when the generator is closed.

        Tried again until the first piece has come; an error after that is raised.
        """
        request = state_pb2.ExportStateRequest(state=state_key(state, "state"))
        return self._export(request, timeout)

    def import_(
        self,
        chunks: Iterable[bytes],
        *,
        name: str | None = None,
        ttl: float | None = None,
        pinned: bool = False,
        timeout: float | None = None,
    ) -> StateInfo:
        """Makes a state of what `export` gave, here or on another server. Nothing is
        visible before the last byte is verified.

        Args:
          chunks: bytes in pieces of any size. Iterated in this thread; what it raises
            ends the import and is raised.
          name, ttl, pinned: as for `Sequence.snapshot`. The exported name is not taken.

        Raises DATA_LOSS for damaged bytes, FAILED_PRECONDITION for a state of another
        model or arithmetic, RESOURCE_EXHAUSTED without room or for a name that is taken.
        """
        options = build_state_options(name, ttl, pinned)
        pieces = split(chunks)
        attempts = self._client._attempts(timeout, options)
        requests: Pipe[state_pb2.ImportStateRequest] = Pipe(_MAX_WAITING)
        method: Any = self._client._channel.stream_unary(
            _rpc.IMPORT_STATE.path, _rpc.serialize, _rpc.IMPORT_STATE.response.FromString
        )
        try:
            call = method.future(
                requests, timeout=attempts.remaining(), metadata=self._client._metadata
            )
        except ValueError:  # gRPC's for a channel that is closed
            raise closed() from None
        # Also when the server refuses before the last piece.
        call.add_done_callback(lambda _: requests.stop())
        try:
            requests.put(state_pb2.ImportStateRequest(options=options))
            for piece in pieces:
                if not requests.put(state_pb2.ImportStateRequest(data=piece)):
                    break
            requests.close()
            return from_message(StateInfo, call.result())
        except grpc.FutureCancelledError:
            raise cancelled() from None
        except grpc.RpcError as failure:
            raise from_rpc_error(failure) from None
        finally:
            # Before `close`: an unfinished import must not look like a whole one.
            call.cancel()
            requests.stop()

    def export_to(
        self, state: State, path: str | os.PathLike[str], *, timeout: float | None = None
    ) -> int:
        """Writes a state to a file, which only its owner can read, and returns its bytes.
        The file is there when it is whole: until then it has a temporary name in the
        same folder.

        Raises INVALID_ARGUMENT (field "path") when it cannot be written.
        """
        pieces = self.export(state, timeout=timeout)
        with contextlib.closing(pieces), NewFile(path) as file:
            for piece in pieces:
                file.write(piece)
            return file.finish()

    def import_from(
        self,
        path: str | os.PathLike[str],
        *,
        name: str | None = None,
        ttl: float | None = None,
        pinned: bool = False,
        timeout: float | None = None,
    ) -> StateInfo:
        """`import_` of a file that `export_to` has written.

        Raises INVALID_ARGUMENT (field "path") when it cannot be read.
        """
        with open_to_read(path) as file:
            pieces = iter(lambda: read_piece(file), b"")
            return self.import_(pieces, name=name, ttl=ttl, pinned=pinned, timeout=timeout)

    def _make_snapshot(self, request: state_pb2.SnapshotRequest) -> StateInfo:
        return from_message(StateInfo, self._client._unary(_rpc.SNAPSHOT, request, None, ONCE))

    def _make_fork(
        self, request: state_pb2.ForkRequest, timeout: float | None = None
    ) -> builtins.list[StateInfo]:
        response: Any = self._client._unary(_rpc.FORK, request, timeout, ONCE)
        return [from_message(StateInfo, state) for state in response.states]

    def _drop(self, state: State) -> None:
        """Releases a state whose time to live would do it later."""
        request = state_pb2.ReleaseStateRequest(state=state_key(state, "state"))
        with contextlib.suppress(RecurveError):
            self._client._unary(_rpc.RELEASE_STATE, request, DROP_TIMEOUT, ONCE)

    def _export(
        self, request: state_pb2.ExportStateRequest, timeout: float | None
    ) -> Generator[bytes, None, None]:
        attempts = self._client._attempts(timeout, request)
        method: Any = self._client._channel.unary_stream(
            _rpc.EXPORT_STATE.path, _rpc.serialize, _rpc.EXPORT_STATE.response.FromString
        )
        begun = False
        while True:
            try:
                call = method(
                    request, timeout=attempts.remaining(), metadata=self._client._metadata
                )
            except ValueError:  # gRPC's for a channel that is closed
                raise closed() from None
            try:
                for response in call:
                    begun = True
                    yield response.data
                return
            except grpc.RpcError as failure:
                error = from_rpc_error(failure)
            finally:
                call.cancel()
            delay = None if begun else attempts.delay_after(error)
            if delay is None:
                raise error
            time.sleep(delay)


def snapshot_request(
    admitted: inference_pb2.Admitted | None,
    at: int | None,
    name: str | None,
    ttl: float | None,
    pinned: bool,
) -> state_pb2.SnapshotRequest:
    assert admitted is not None
    request = state_pb2.SnapshotRequest(
        request_id=admitted.request_id, options=build_state_options(name, ttl, pinned)
    )
    if at is not None:
        set_field(request, "at", at, "at")
    return request


def fork_request(
    state: State, n: int, at: int | None, seed: int | None, ttl: float | None
) -> state_pb2.ForkRequest:
    request = state_pb2.ForkRequest(
        state=state_key(state, "state"), options=build_state_options(None, ttl, False)
    )
    set_field(request, "count", n, "count")
    if seed is not None:
        set_field(request, "seed", seed, "seed")
    if at is not None:
        set_field(request, "at", at, "at")
    return request


def pin_request(
    state: State, name: str | None, ttl: float | None, pinned: bool | None
) -> state_pb2.PinStateRequest:
    pin = ttl is None if pinned is None else pinned
    return state_pb2.PinStateRequest(
        state=state_key(state, "state"), options=build_state_options(name, ttl, pin)
    )


def state_list(response: Any) -> StateList:
    states = tuple(from_message(StateInfo, state) for state in response.states)
    return StateList(states, response.bytes, response.max_bytes)


def split(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes in pieces of PIECE_BYTES at most.

    Raises INVALID_ARGUMENT for what is no iterable of bytes: at once, or from the
    iterator.
    """
    if isinstance(chunks, (str, bytes, bytearray, memoryview)) or not isinstance(chunks, Iterable):
        raise invalid("chunks", f"is of type {type(chunks).__name__}; expected pieces of bytes")
    return (piece for chunk in chunks for piece in split_one(chunk))


def split_one(chunk: bytes) -> Iterator[bytes]:
    if not isinstance(chunk, (bytes, bytearray, memoryview)):
        raise invalid("chunks", f"has an item of type {type(chunk).__name__}; expected bytes")
    data = bytes(chunk)
    for start in range(0, len(data), PIECE_BYTES):
        yield data[start : start + PIECE_BYTES]


class NewFile:
    """A file that is at `path` when it is whole. Methods raise INVALID_ARGUMENT."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._written = 0
        try:
            descriptor, name = tempfile.mkstemp(
                dir=self._path.parent, prefix=f".{self._path.name}."
            )
        except OSError as error:
            raise _cannot("written", error) from None
        self._temporary: Path | None = Path(name)
        self._file = os.fdopen(descriptor, "wb")

    def write(self, data: bytes) -> None:
        try:
            self._file.write(data)
        except OSError as error:
            raise _cannot("written", error) from None
        self._written += len(data)

    def finish(self) -> int:
        """Gives the file its name, on disk. Returns its bytes."""
        assert self._temporary is not None
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._temporary.replace(self._path)
        except OSError as error:
            raise _cannot("written", error) from None
        self._temporary = None
        return self._written

    def __enter__(self) -> NewFile:
        return self

    def __exit__(self, *_: object) -> None:
        if self._temporary is not None:
            with contextlib.suppress(OSError):  # what it still wants to write
                self._file.close()
            self._temporary.unlink(missing_ok=True)


def open_to_read(path: str | os.PathLike[str]) -> BinaryIO:
    try:
        return open(path, "rb")
    except OSError as error:
        raise _cannot("read", error) from None


def read_piece(file: BinaryIO) -> bytes:
    try:
        return file.read(PIECE_BYTES)
    except OSError as error:
        raise _cannot("read", error) from None


def _cannot(what: str, error: OSError) -> RecurveError:
    return invalid("path", f"cannot be {what}: {error}")
