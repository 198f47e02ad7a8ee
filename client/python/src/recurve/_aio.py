"""The client for asyncio: the same calls as `_sync`, awaited."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Any, Unpack

import grpc
import grpc.aio
from google.protobuf.message import Message

from recurve import _channel, _rpc
from recurve._aio_sequence import AsyncSequence
from recurve._aio_states import AsyncStates
from recurve._assembly import Assembly
from recurve._errors import RecurveError, cancelled, closed, from_rpc_error, from_status
from recurve._request import Params, Prompt, SequenceParams, State, build_request
from recurve._retry import Attempts, RetryPolicy
from recurve._types import Generation, Health, Load, ModelInfo, ServerInfo, Tokens, from_message
from recurve.v1 import control_pb2, inference_pb2


class AsyncGenerateStream(AsyncIterator[Tokens]):
    """One generation under way. Made by `AsyncClient.generate`.

    As `GenerateStream`, with `async for`, `async with` and `await`. Cancelling the
    task that iterates ends the call.

    One task iterates; `cancel` may be called by any of the same event loop.
    """

    def __init__(
        self,
        method: Any,
        request: inference_pb2.GenerateRequest,
        attempts: Attempts,
        metadata: _channel.Metadata,
        resume: bool,
    ) -> None:
        self._method = method
        self._request = request
        self._attempts = attempts
        self._metadata = metadata
        self._resume = resume
        self._assembly = Assembly(request.n if request.HasField("n") else 1)
        self._error: RecurveError | None = None
        self._cancelled = asyncio.Event()
        self._call = self._start()

    async def __anext__(self) -> Tokens:
        if self._error is not None:
            raise self._error
        try:
            while True:
                piece = await self._advance()
                if piece is not None:
                    return piece
        except RecurveError as error:
            self._error = error
            self._call.cancel()
            raise

    async def result(self) -> Generation:
        """Waits for the end. Includes what has been iterated over before."""
        return (await self.results())[0]

    async def results(self) -> tuple[Generation, ...]:
        """As `result`, of all continuations of a request with `n`."""
        async for _ in self:
            pass
        return self._assembly.generations()

    async def request_id(self) -> str | None:
        """The id for `AsyncClient.abort`; see `GenerateStream.request_id`."""
        try:
            metadata = await self._call.initial_metadata()
        except grpc.RpcError:
            return None
        return next((str(v) for k, v in metadata or () if k == "recurve-request-id"), None)

    def cancel(self) -> None:
        """Ends the call. Iterating then raises CANCELLED, unless it is at its end."""
        self._cancelled.set()
        self._call.cancel()

    async def __aenter__(self) -> AsyncGenerateStream:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.cancel()

    def _start(self) -> Any:
        return self._method(
            self._request, timeout=self._attempts.remaining(), metadata=self._metadata
        )

    async def _advance(self) -> Tokens | None:
        """One event, or the wait before another try."""
        if not self._assembly.finished and self._cancelled.is_set():
            raise cancelled()
        try:
            event = await self._call.read()
        except asyncio.CancelledError:
            # gRPC raises this for a call that is cancelled, too.
            task = asyncio.current_task()
            if self._cancelled.is_set() and not (task and task.cancelling()):
                raise cancelled() from None
            self._call.cancel()
            self._error = cancelled()  # for later reads
            raise
        except grpc.RpcError as failure:
            if self._cancelled.is_set():
                raise cancelled() from None
            await self._wait_to_retry(from_rpc_error(failure))
            return None
        if event is grpc.aio.EOF:
            await self._check_ended()
            raise StopAsyncIteration
        return self._assembly.add(event)

    async def _check_ended(self) -> None:
        code = await self._call.code()
        if code != grpc.StatusCode.OK:
            raise from_status(
                code, await self._call.details(), await self._call.trailing_metadata()
            )
        self._assembly.generations()  # which checks that there are all

    async def _wait_to_retry(self, error: RecurveError) -> None:
        if self._assembly.delivered and not self._resume:
            raise error
        delay = self._attempts.delay_after(error)
        if delay is None:
            raise error
        try:
            await asyncio.wait_for(self._cancelled.wait(), delay)
            raise cancelled()
        except asyncio.CancelledError:
            self._error = cancelled()  # for later reads
            raise
        except TimeoutError:
            if self._cancelled.is_set():
                raise cancelled() from None
        if self._assembly.admitted is not None:
            # The seed that the server chose gives the same tokens again.
            self._request.sampling.seed = self._assembly.admitted.seed
        self._assembly.restart()
        self._call = self._start()


class AsyncClient:
    """A connection to one Recurve server, for asyncio.

    Arguments, methods and errors are those of `Client`; methods are awaited, but
    `generate` returns an `AsyncGenerateStream` and `sequence` an `AsyncSequence` at
    once. Make it inside a running event loop and use it in that loop only.

    Attributes:
      states: see `AsyncStates`.
    """

    def __init__(
        self,
        server: str = "127.0.0.1:50051",
        *,
        tls: _channel.Tls | None = None,
        api_key: str | None = None,
        metadata: Mapping[str, str] | None = None,
        timeout: float | None = None,
        retry: RetryPolicy = RetryPolicy(),
        max_receive_bytes: int = 64 << 20,
    ) -> None:
        Attempts(retry, timeout)  # refuses a timeout that no call could have
        self._timeout = timeout
        self._retry = retry
        self._metadata = _channel.check_metadata({} if metadata is None else metadata, api_key)
        target = _channel.target(server)
        options = _channel.options(server, tls, max_receive_bytes)
        self._channel = (
            grpc.aio.insecure_channel(target, options)
            if tls is None
            else grpc.aio.secure_channel(target, tls.credentials(), options)
        )
        self._closed = False
        self._streams: weakref.WeakSet[AsyncGenerateStream | AsyncSequence] = weakref.WeakSet()
        self._generate: Any = self._channel.unary_stream(
            _rpc.GENERATE.path, _rpc.serialize, _rpc.GENERATE.response.FromString
        )
        self._decode: Any = self._channel.stream_stream(
            _rpc.DECODE.path, _rpc.serialize, _rpc.DECODE.response.FromString
        )
        self.states = AsyncStates(self)

    def generate(
        self,
        prompt: Prompt | None = None,
        *,
        timeout: float | None = None,
        resume: bool = False,
        **params: Unpack[Params],
    ) -> AsyncGenerateStream:
        """Sends a prompt and returns the stream of its output; see `Client.generate`."""
        request = build_request(prompt, params)
        attempts = self._attempts(timeout, request)
        if self._closed:
            raise closed()
        stream = AsyncGenerateStream(
            self._generate, request, attempts, self._metadata, resume
        )
        self._streams.add(stream)
        return stream

    def sequence(
        self,
        prompt: Prompt | None = None,
        *,
        from_state: State | None = None,
        timeout: float | None = None,
        **params: Unpack[SequenceParams],
    ) -> AsyncSequence:
        """A sequence to drive command by command; see `Client.sequence`."""
        return self._add_sequence(prompt, from_state, timeout, params)

    async def model_info(self, *, timeout: float | None = None) -> ModelInfo:
        request = control_pb2.GetModelInfoRequest()
        return from_message(ModelInfo, await self._unary(_rpc.MODEL_INFO, request, timeout))

    async def server_info(self, *, timeout: float | None = None) -> ServerInfo:
        request = control_pb2.GetServerInfoRequest()
        return from_message(ServerInfo, await self._unary(_rpc.SERVER_INFO, request, timeout))

    async def load(self, *, timeout: float | None = None) -> Load:
        """How busy the server is."""
        request = control_pb2.GetLoadRequest()
        return from_message(Load, await self._unary(_rpc.LOAD, request, timeout))

    async def health(self, service: str = "", *, timeout: float | None = None) -> Health:
        """The health of the server or a service; never retried. See `Client.health`."""
        request = _rpc.health_request(service)
        return _rpc.health_of(await self._unary(_rpc.HEALTH, request, timeout, RetryPolicy(1)))

    async def abort(self, request_id: str, *, timeout: float | None = None) -> None:
        """Ends a request by its id; see `Client.abort`."""
        await self._unary(_rpc.ABORT, _rpc.abort_request(request_id), timeout)

    async def drain(self, *, timeout: float | None = None) -> int:
        """Lets the server finish and exit; see `Client.drain`."""
        response: Any = await self._unary(_rpc.DRAIN, control_pb2.DrainRequest(), timeout)
        return int(response.remaining)

    async def close(self) -> None:
        self._closed = True
        for stream in list(self._streams):  # also one that waits for its next try
            stream.cancel()
        await self._channel.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def _add_sequence(
        self,
        prompt: Prompt | None,
        from_state: State | None,
        timeout: float | None,
        params: SequenceParams,
        own_state: bool = False,
    ) -> AsyncSequence:
        sequence = AsyncSequence(self, prompt, from_state, timeout, params, own_state)
        self._streams.add(sequence)
        return sequence

    def _attempts(
        self, timeout: float | None, request: Message, retry: RetryPolicy | None = None
    ) -> Attempts:
        seconds = self._timeout if timeout is None else timeout
        metadata_bytes = _channel.metadata_bytes(self._metadata)
        return Attempts(retry or self._retry, seconds, request.ByteSize(), metadata_bytes)

    async def _unary(
        self,
        method: _rpc.Method,
        request: Message,
        timeout: float | None,
        retry: RetryPolicy | None = None,
    ) -> Message:
        attempts = self._attempts(timeout, request, retry)
        call: Any = self._channel.unary_unary(
            method.path, _rpc.serialize, method.response.FromString
        )
        while True:
            if self._closed:
                raise closed()
            try:
                response: Message = await call(
                    request, timeout=attempts.remaining(), metadata=self._metadata
                )
                return response
            except asyncio.CancelledError:
                # gRPC raises this for a call that is under way at close(), too.
                task = asyncio.current_task()
                if self._closed and not (task and task.cancelling()):
                    raise cancelled() from None
                raise
            except grpc.RpcError as failure:
                error = from_rpc_error(failure)
            delay = attempts.delay_after(error)
            if delay is None:
                raise error
            await asyncio.sleep(delay)
