"""Sequences that the caller drives, for asyncio: the same calls as `_sequence`, awaited."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Unpack

import grpc
import grpc.aio

from recurve._aio_status import Ending
from recurve._commands import Commands
from recurve._errors import (
    RecurveError,
    cancelled,
    closed,
    data_loss,
    from_rpc_error,
    precondition,
)
from recurve._request import LogitsMode, Prompt, SequenceParams, State
from recurve._retry import Attempts
from recurve._states import fork_request, snapshot_request
from recurve._types import CommandResult, StateInfo, Tokens
from recurve.v1 import inference_pb2 as pb

if TYPE_CHECKING:
    from recurve._aio import AsyncClient


class AsyncCommandStream(AsyncIterator[Tokens]):
    """One command under way. Made by `AsyncSequence.stream`.

    As `CommandStream`, with `async for` and `await`. Cancelling the task that iterates
    ends the call of the sequence.
    """

    def __init__(self, sequence: AsyncSequence) -> None:
        self._sequence = sequence
        self._result: CommandResult | None = None

    async def __anext__(self) -> Tokens:
        while self._result is None:
            piece = await self._sequence._advance()
            if not self._sequence._commands.running:
                self._result = self._sequence._commands.result()
                await self._sequence._drop_state()
            if piece is not None:
                return piece
        raise StopAsyncIteration

    async def result(self) -> CommandResult:
        """Waits for the end. Includes what has been iterated over before."""
        async for _ in self:
            pass
        assert self._result is not None
        return self._result


class AsyncSequence:
    """A sequence that the caller drives, command by command. Made by
    `AsyncClient.sequence`.

    As `Sequence`, with `async with`. `append`, `generate`, `snapshot`, `fork`, `close`
    and `request_id` are awaited; `stream`, `rollback` and `cancel` return at once.
    Cancelling the task that waits for a command ends the call.

    One task drives it; `cancel` may be called by any of the same event loop.
    """

    def __init__(
        self,
        client: AsyncClient,
        prompt: Prompt | None,
        from_state: State | None,
        timeout: float | None,
        params: SequenceParams,
        own_state: bool = False,
    ) -> None:
        self._client = client
        self._timeout = timeout
        self._params = params
        self._commands = Commands(prompt, from_state, params)
        client._attempts(timeout, pb.DecodeRequest())  # refuses a timeout no call could have
        # A state that was made for this sequence alone, until it is released.
        self._state = from_state if own_state else None
        self._error: RecurveError | None = None
        self._closed = False
        self._cancelled = asyncio.Event()
        self._attempts: Attempts | None = None
        self._call: Any = None
        # None: no more.
        self._requests: asyncio.Queue[pb.DecodeRequest | None] = asyncio.Queue()

    @property
    def length(self) -> int:
        """Tokens of the sequence; see `Sequence.length`."""
        return self._commands.length

    @property
    def kept(self) -> tuple[int, ...]:
        """The points that `rollback` can go back to, as numbers of tokens."""
        return self._commands.kept

    @property
    def seed(self) -> int | None:
        """In use; see `Sequence.seed`."""
        admitted = self._commands.admitted
        return None if admitted is None else admitted.seed

    async def request_id(self) -> str | None:
        """The id for `AsyncClient.abort`; see `Sequence.request_id`."""
        if self._call is None:
            return None
        try:
            metadata = await self._call.initial_metadata()
        except grpc.RpcError:
            return None
        return next((str(v) for k, v in metadata or () if k == "recurve-request-id"), None)

    async def append(
        self, tokens: Prompt, *, logits: LogitsMode = "none", keep: bool = False
    ) -> CommandResult:
        """Appends tokens; see `Sequence.append`."""
        return await self._begin(tokens, 0, logits, keep).result()

    async def generate(
        self,
        n: int,
        *,
        append: Prompt | None = None,
        logits: LogitsMode = "none",
        keep: bool = False,
    ) -> CommandResult:
        """Generates at most `n` tokens; see `Sequence.generate`."""
        return await self._begin(append, n, logits, keep).result()

    def stream(
        self,
        n: int,
        *,
        append: Prompt | None = None,
        logits: LogitsMode = "none",
        keep: bool = False,
    ) -> AsyncCommandStream:
        """As `generate`, but returns at once, to iterate over tokens as they are made."""
        return self._begin(append, n, logits, keep)

    def rollback(self, to: int) -> None:
        """Goes back to a kept point, with the next command; see `Sequence.rollback`."""
        self._check_usable()
        self._commands.rollback(to)

    async def snapshot(
        self,
        at: int | None = None,
        name: str | None = None,
        ttl: float | None = None,
        pinned: bool = False,
    ) -> StateInfo:
        """Makes a state of the sequence, which goes on; see `Sequence.snapshot`."""
        await self._open_to_snapshot()
        point = self._commands.snapshot_point(at)
        request = snapshot_request(self._commands.admitted, point, name, ttl, pinned)
        return await self._client.states._make_snapshot(request)

    async def fork(
        self,
        n: int,
        *,
        ttl: float | None = None,
        timeout: float | None = None,
        **params: Unpack[SequenceParams],
    ) -> list[AsyncSequence]:
        """`n` new sequences that continue this one, which goes on; see `Sequence.fork`."""
        # The state gets its id below.
        request = fork_request("-", n, None, params.get("seed"), ttl)
        inherited: SequenceParams = {**self._params, **params}
        inherited.pop("seed", None)
        if "snapshot_at" not in params:
            inherited.pop("snapshot_at", None)
        Commands(None, None, inherited)  # refuses wrong parameters before it makes states
        base = await self.snapshot(ttl=ttl)
        try:
            request.state = base.id
            states = await self._client.states._make_fork(request)
        finally:
            await self._client.states._drop(base)
        seconds = self._timeout if timeout is None else timeout
        return [self._client._add_sequence(None, s, seconds, inherited, True) for s in states]

    async def close(self) -> str:
        """Ends the sequence, and returns text that its last command held back; see
        `Sequence.close`.
        """
        if self._closed:
            return ""
        self._closed = True
        await self._drop_state()
        if self._call is None or self._error is not None or self._commands.running:
            self.cancel()
            return ""
        forgotten = self._commands.rolled_back_to is not None
        self._requests.put_nowait(None)
        text = ""
        while (response := await self._read()) is not None:
            text += response.tokens.text
        return "" if forgotten else text

    def cancel(self) -> None:
        """Ends the call at once. A command under way raises CANCELLED, and so do later
        ones.
        """
        self._cancelled.set()
        self._end_call()

    async def __aenter__(self) -> AsyncSequence:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            self.cancel()
        with contextlib.suppress(RecurveError):  # every command has had its answer
            await self.close()

    def __del__(self) -> None:
        if hasattr(self, "_requests"):  # not after an __init__ that raised
            with contextlib.suppress(RuntimeError):  # the event loop may be closed
                self._end_call()

    def _begin(
        self, append: Prompt | None, n: int, logits: LogitsMode, keep: bool
    ) -> AsyncCommandStream:
        self._check_usable()
        self._commands.begin(append, n, logits, keep)
        try:
            self._send_next()
        except RecurveError as error:
            self._error = error
            raise
        return AsyncCommandStream(self)

    def _send_next(self) -> None:
        request = self._commands.next_request()
        if request is None:
            return
        if self._attempts is None:
            self._attempts = self._client._attempts(self._timeout, request)
            self._open()
        else:
            self._requests.put_nowait(request)

    def _open(self) -> None:
        assert self._attempts is not None
        if self._client._closed:
            raise closed()
        self._requests = asyncio.Queue()
        self._requests.put_nowait(self._commands.first_request())
        self._call = self._client._decode(
            _items(self._requests),
            timeout=self._attempts.remaining(),
            metadata=self._client._metadata,
        )
        self._ending = Ending(self._call)

    async def _advance(self) -> Tokens | None:
        """One response, or the wait before another try."""
        if self._error is not None:
            raise self._error
        try:
            self._send_next()
            if self._cancelled.is_set():
                raise cancelled()
            try:
                response = await self._read()
            except RecurveError as error:
                await self._wait_to_retry(error)
                return None
            if response is None:
                raise data_loss("the call ended with OK, but the command was not done")
            return self._commands.add(response)
        except asyncio.CancelledError:
            self._error = cancelled()  # for later commands
            self._end_call()
            raise
        except RecurveError as error:
            self._error = error
            self._end_call()
            raise

    async def _read(self) -> pb.DecodeResponse | None:
        """The next response; None: the call has ended with OK."""
        try:
            response: Any = await self._call.read()
            if response is not grpc.aio.EOF:
                return response  # type: ignore[no-any-return]
            error = await self._ending.error()
        except asyncio.CancelledError:
            # gRPC raises this for a call that is cancelled, too.
            task = asyncio.current_task()
            if self._cancelled.is_set() and not (task and task.cancelling()):
                raise cancelled() from None
            raise
        except grpc.RpcError as failure:
            error = await self._ending.error() or from_rpc_error(failure)
        if error is None:
            return None
        raise cancelled() if self._cancelled.is_set() else error

    async def _wait_to_retry(self, error: RecurveError) -> None:
        assert self._attempts is not None
        if self._commands.answered or self._cancelled.is_set():
            raise error
        delay = self._attempts.delay_after(error)
        if delay is None:
            raise error
        try:
            await asyncio.wait_for(self._cancelled.wait(), delay)
        except TimeoutError:
            pass
        if self._cancelled.is_set():
            raise cancelled()
        self._requests.put_nowait(None)
        self._open()

    def _end_call(self) -> None:
        self._requests.put_nowait(None)
        if self._call is not None:
            self._call.cancel()

    def _check_usable(self) -> None:
        if self._error is not None:
            raise self._error
        if self._closed:
            raise precondition("the sequence is closed")
        if self._cancelled.is_set():
            raise cancelled()

    async def _open_to_snapshot(self) -> None:
        self._check_usable()
        self._commands.check_idle()
        if self._commands.prompt is not None:
            await self._begin(None, 0, "none", False).result()
        if self._commands.admitted is None:
            raise precondition("the sequence has no state before its first command")

    async def _drop_state(self) -> None:
        """Releases the state that this sequence alone continues."""
        state, self._state = self._state, None
        if state is not None:
            await self._client.states._drop(state)


async def _items(
    queue: asyncio.Queue[pb.DecodeRequest | None],
) -> AsyncIterator[pb.DecodeRequest]:
    while (request := await queue.get()) is not None:
        yield request
