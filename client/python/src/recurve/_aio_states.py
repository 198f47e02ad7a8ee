"""States, for asyncio: the same calls as `_states`, awaited."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import os
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from recurve import _rpc
from recurve._aio_status import Ending
from recurve._errors import RecurveError, cancelled, closed, from_rpc_error
from recurve._request import State, build_state_options, state_key
from recurve._states import (
    DROP_TIMEOUT,
    ONCE,
    NewFile,
    fork_request,
    open_to_read,
    pin_request,
    read_piece,
    split,
    split_one,
    state_list,
)
from recurve._types import StateInfo, StateList, from_message
from recurve.v1 import state_pb2

if TYPE_CHECKING:
    from recurve._aio import AsyncClient


class AsyncStates:
    """The states of the caller's tenant: `AsyncClient.states`.

    As `States`, awaited; `export` is for `async for`, and `import_` takes asynchronous
    iterators, too.
    """

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def get(self, state: State, *, timeout: float | None = None) -> StateInfo:
        """What the server knows about a state; see `States.get`."""
        request = state_pb2.GetStateRequest(state=state_key(state, "state"))
        return from_message(
            StateInfo, await self._client._unary(_rpc.GET_STATE, request, timeout)
        )

    async def list(self, *, timeout: float | None = None) -> StateList:
        """The tenant's states, the latest first; see `States.list`."""
        request = state_pb2.ListStatesRequest()
        return state_list(await self._client._unary(_rpc.LIST_STATES, request, timeout))

    async def pin(
        self,
        state: State,
        *,
        name: str | None = None,
        ttl: float | None = None,
        pinned: bool | None = None,
        timeout: float | None = None,
    ) -> StateInfo:
        """Pins a state, or unpins it with a `ttl`; see `States.pin`."""
        request = pin_request(state, name, ttl, pinned)
        return from_message(
            StateInfo, await self._client._unary(_rpc.PIN_STATE, request, timeout, ONCE)
        )

    async def release(self, state: State, *, timeout: float | None = None) -> None:
        """Forgets a state. Sequences that continue it go on."""
        request = state_pb2.ReleaseStateRequest(state=state_key(state, "state"))
        await self._client._unary(_rpc.RELEASE_STATE, request, timeout)

    async def fork(
        self,
        state: State,
        n: int,
        *,
        at: int | None = None,
        seed: int | None = None,
        ttl: float | None = None,
        timeout: float | None = None,
    ) -> builtins.list[StateInfo]:
        """`n` states of one, each with a seed of its own; see `States.fork`."""
        return await self._make_fork(fork_request(state, n, at, seed, ttl), timeout)

    def export(
        self, state: State, *, timeout: float | None = None
    ) -> AsyncGenerator[bytes, None]:
        """The state as bytes, in pieces below 4 MiB; see `States.export`."""
        request = state_pb2.ExportStateRequest(state=state_key(state, "state"))
        return self._export(request, timeout)

    async def import_(
        self,
        chunks: Iterable[bytes] | AsyncIterable[bytes],
        *,
        name: str | None = None,
        ttl: float | None = None,
        pinned: bool = False,
        timeout: float | None = None,
    ) -> StateInfo:
        """Makes a state of what `export` gave; see `States.import_`."""
        options = build_state_options(name, ttl, pinned)
        pieces = _split(chunks)
        attempts = self._client._attempts(timeout, options)
        if self._client._closed:
            raise closed()
        method: Any = self._client._channel.stream_unary(
            _rpc.IMPORT_STATE.path, _rpc.serialize, _rpc.IMPORT_STATE.response.FromString
        )
        call = method(timeout=attempts.remaining(), metadata=self._client._metadata)
        ending = Ending(call)
        try:
            if await _write(call, state_pb2.ImportStateRequest(options=options)):
                async for piece in pieces:
                    if not await _write(call, state_pb2.ImportStateRequest(data=piece)):
                        break
            await call.done_writing()
            return from_message(StateInfo, await call)
        except asyncio.CancelledError:
            # gRPC raises this for a call that is under way at close(), too.
            task = asyncio.current_task()
            if self._client._closed and not (task and task.cancelling()):
                raise cancelled() from None
            raise
        except grpc.RpcError as failure:
            raise await ending.error() or from_rpc_error(failure) from None
        finally:
            call.cancel()

    async def export_to(
        self, state: State, path: str | os.PathLike[str], *, timeout: float | None = None
    ) -> int:
        """Writes a state to a file and returns its bytes; see `States.export_to`."""
        pieces = self.export(state, timeout=timeout)
        async with contextlib.aclosing(pieces):
            with await asyncio.to_thread(NewFile, path) as file:
                async for piece in pieces:
                    await asyncio.to_thread(file.write, piece)
                return await asyncio.to_thread(file.finish)

    async def import_from(
        self,
        path: str | os.PathLike[str],
        *,
        name: str | None = None,
        ttl: float | None = None,
        pinned: bool = False,
        timeout: float | None = None,
    ) -> StateInfo:
        """`import_` of a file that `export_to` has written; see `States.import_from`."""
        with await asyncio.to_thread(open_to_read, path) as file:

            async def pieces() -> AsyncIterator[bytes]:
                while piece := await asyncio.to_thread(read_piece, file):
                    yield piece

            return await self.import_(
                pieces(), name=name, ttl=ttl, pinned=pinned, timeout=timeout
            )

    async def _make_snapshot(self, request: state_pb2.SnapshotRequest) -> StateInfo:
        return from_message(
            StateInfo, await self._client._unary(_rpc.SNAPSHOT, request, None, ONCE)
        )

    async def _make_fork(
        self, request: state_pb2.ForkRequest, timeout: float | None = None
    ) -> builtins.list[StateInfo]:
        response: Any = await self._client._unary(_rpc.FORK, request, timeout, ONCE)
        return [from_message(StateInfo, state) for state in response.states]

    async def _drop(self, state: State) -> None:
        """Releases a state whose time to live would do it later."""
        request = state_pb2.ReleaseStateRequest(state=state_key(state, "state"))
        with contextlib.suppress(RecurveError):
            await self._client._unary(_rpc.RELEASE_STATE, request, DROP_TIMEOUT, ONCE)

    async def _export(
        self, request: state_pb2.ExportStateRequest, timeout: float | None
    ) -> AsyncGenerator[bytes, None]:
        attempts = self._client._attempts(timeout, request)
        method: Any = self._client._channel.unary_stream(
            _rpc.EXPORT_STATE.path, _rpc.serialize, _rpc.EXPORT_STATE.response.FromString
        )
        begun = False
        while True:
            if self._client._closed:
                raise closed()
            call = method(
                request, timeout=attempts.remaining(), metadata=self._client._metadata
            )
            try:
                async for response in call:
                    begun = True
                    yield response.data
                return
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if self._client._closed and not (task and task.cancelling()):
                    raise cancelled() from None
                raise
            except grpc.RpcError as failure:
                error = from_rpc_error(failure)
            finally:
                call.cancel()
            delay = None if begun else attempts.delay_after(error)
            if delay is None:
                raise error
            await asyncio.sleep(delay)


async def _write(call: Any, request: state_pb2.ImportStateRequest) -> bool:
    """False: the server has ended the call; awaiting it tells why."""
    try:
        await call.write(request)
    except asyncio.InvalidStateError:
        return False
    return True


def _split(chunks: Iterable[bytes] | AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """As `split`, for both kinds."""
    if isinstance(chunks, AsyncIterable):
        return _split_async(chunks)
    return _awaited(split(chunks))


async def _split_async(chunks: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    async for chunk in chunks:
        for piece in split_one(chunk):
            yield piece


async def _awaited(pieces: Iterable[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece
