"""The blocking client."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Unpack

import grpc
from google.protobuf.message import Message

from recurve import _channel, _rpc
from recurve._assembly import Assembly
from recurve._errors import RecurveError, cancelled, closed, from_rpc_error
from recurve._request import Params, Prompt, SequenceParams, State, build_request
from recurve._retry import Attempts, RetryPolicy
from recurve._sequence import Sequence
from recurve._states import States
from recurve._types import Generation, Health, Load, ModelInfo, ServerInfo, Tokens, from_message
from recurve.v1 import control_pb2, inference_pb2


class GenerateStream(Iterator[Tokens]):
    """One generation under way. Made by `Client.generate`.

    Iterate to get `Tokens` as they are made, or call `result` for the whole. Use
    it in a `with` block where the loop may be left early: leaving the block ends
    the call, and the server frees its memory.

    Both raise RecurveError when the call fails, and again when asked again.

    Thread safety: one thread iterates; `cancel` may be called from any.
    """

    def __init__(
        self,
        method: grpc.UnaryStreamMultiCallable[Any, Any],
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
        self._cancelled = threading.Event()
        try:
            self._call = self._start()
        except ValueError:  # gRPC's for a channel that is closed
            raise closed() from None

    def __next__(self) -> Tokens:
        if self._error is not None:
            raise self._error
        try:
            while True:
                piece = self._advance()
                if piece is not None:
                    return piece
        except RecurveError as error:
            self._error = error
            self._call.cancel()
            raise

    def result(self) -> Generation:
        """Waits for the end. Includes what has been iterated over before."""
        return self.results()[0]

    def results(self) -> tuple[Generation, ...]:
        """As `result`, of all continuations of a request with `n`."""
        for _ in self:
            pass
        return self._assembly.generations()

    def request_id(self) -> str | None:
        """The id for `Client.abort`. Waits until the server has accepted the request,
        which may be long before its first token; None when it was refused (what
        iterating raises then tells why). A retry gets a new id.
        """
        try:
            metadata = self._call.initial_metadata()
        except grpc.RpcError:
            return None
        return next((str(v) for k, v in metadata or () if k == "recurve-request-id"), None)

    def cancel(self) -> None:
        """Ends the call. Iterating then raises CANCELLED, unless it is at its end."""
        self._cancelled.set()
        self._call.cancel()

    def __enter__(self) -> GenerateStream:
        return self

    def __exit__(
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

    def _advance(self) -> Tokens | None:
        """One event, or the wait before another try."""
        if not self._assembly.finished and self._cancelled.is_set():
            raise cancelled()
        try:
            event = next(self._call)
        except StopIteration:
            self._assembly.generations()  # which checks that there are all
            raise
        except grpc.RpcError as failure:
            if self._cancelled.is_set():
                raise cancelled() from None
            self._wait_to_retry(from_rpc_error(failure))
            return None
        return self._assembly.add(event)

    def _wait_to_retry(self, error: RecurveError) -> None:
        if self._assembly.delivered and not self._resume:
            raise error
        delay = self._attempts.delay_after(error)
        if delay is None:
            raise error
        if self._cancelled.wait(delay):
            raise cancelled()
        if self._assembly.admitted is not None:
            # The seed that the server chose gives the same tokens again.
            self._request.sampling.seed = self._assembly.admitted.seed
        self._assembly.restart()
        try:
            self._call = self._start()
        except ValueError:  # gRPC's for a channel that is closed
            raise cancelled() from None
        if self._cancelled.is_set():  # by a cancel before the call
            self._call.cancel()


class Client:
    """A connection to one Recurve server, blocking.

    Does not connect by itself: the first call does. Close it, or use it in a
    `with` block.

    Args:
      server: HOST:PORT; an IPv6 address goes in brackets.
      tls: None: plaintext.
      api_key: sent with every call, for a server with API keys. Without `tls` it
        travels as it is.
      metadata: headers of every call, e.g. for a proxy. Keys in lower case.
        Without `tls` they travel as they are.
      timeout: seconds that each call has, retries and waits included, where the
        call does not say; None: no limit.
      retry: see `RetryPolicy`.
      max_receive_bytes: the largest message taken from the server.

    Calls raise RecurveError: what the server sent, or gRPC's own (UNAVAILABLE
    without a connection, DEADLINE_EXCEEDED, CANCELLED). The constructor raises it
    (INVALID_ARGUMENT, naming the argument) for arguments that cannot work.

    Attributes:
      states: see `States`.

    Thread safety: all methods may be called from any thread. Closing ends the
    streams and sequences that are open.
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
            grpc.insecure_channel(target, options)
            if tls is None
            else grpc.secure_channel(target, tls.credentials(), options)
        )
        self._lock = threading.Lock()
        self._streams: weakref.WeakSet[GenerateStream | Sequence] = weakref.WeakSet()
        self._generate = self._channel.unary_stream(
            _rpc.GENERATE.path, _rpc.serialize, _rpc.GENERATE.response.FromString
        )
        self._decode = self._channel.stream_stream(
            _rpc.DECODE.path, _rpc.serialize, _rpc.DECODE.response.FromString
        )
        self.states = States(self)

    def generate(
        self,
        prompt: Prompt | None = None,
        *,
        timeout: float | None = None,
        resume: bool = False,
        **params: Unpack[Params],
    ) -> GenerateStream:
        """Sends a prompt, text or token ids, and returns the stream of its output.

        Args:
          prompt: text for the model's tokenizer, or ids, used as they are. With the
            parameter `from_state` it continues that state, and may be None or empty.
          timeout: seconds for the whole generation; None: the client's.
          resume: retries also after tokens have come. The server then makes them
            again, with the seed it used; the client compares, leaves out what it
            has delivered and goes on behind it (DATA_LOSS if they differ, as they
            may on a server with another model). Without this a stream that breaks
            after its first piece raises.
          **params: see `Params`.

        Raises RecurveError (INVALID_ARGUMENT) for a value of a wrong type, TypeError
        for an unknown keyword. All other errors come from the stream.
        """
        request = build_request(prompt, params)
        stream = GenerateStream(
            self._generate,
            request,
            self._attempts(timeout, request),
            self._metadata,
            resume,
        )
        with self._lock:
            self._streams.add(stream)
        return stream

    def sequence(
        self,
        prompt: Prompt | None = None,
        *,
        from_state: State | None = None,
        timeout: float | None = None,
        **params: Unpack[SequenceParams],
    ) -> Sequence:
        """A sequence to drive command by command: append, generate, roll back, fork. Sends
        nothing: the first command does.

        Args:
          prompt: text or ids that the first command sends; if that appends something of
            its own, the prompt goes before it, as a command by itself. None: the first
            command begins with its own.
          from_state: the state that the sequence continues; None: begins a new one.
          timeout: seconds from the first command to the end of the sequence, however
            long the caller waits between commands; None: the client's.
          **params: see `SequenceParams`. They hold for the whole sequence.

        Raises RecurveError (INVALID_ARGUMENT) for a value of a wrong type, TypeError
        for an unknown keyword. All other errors come from commands.
        """
        return self._add_sequence(prompt, from_state, timeout, params)

    def model_info(self, *, timeout: float | None = None) -> ModelInfo:
        request = control_pb2.GetModelInfoRequest()
        return from_message(ModelInfo, self._unary(_rpc.MODEL_INFO, request, timeout))

    def server_info(self, *, timeout: float | None = None) -> ServerInfo:
        request = control_pb2.GetServerInfoRequest()
        return from_message(ServerInfo, self._unary(_rpc.SERVER_INFO, request, timeout))

    def load(self, *, timeout: float | None = None) -> Load:
        """How busy the server is."""
        request = control_pb2.GetLoadRequest()
        return from_message(Load, self._unary(_rpc.LOAD, request, timeout))

    def health(self, service: str = "", *, timeout: float | None = None) -> Health:
        """The health of the server, or of a service such as "recurve.v1.Inference".

        Never retried: a probe wants the answer of now. NOT_FOUND when the server
        does not know the service.
        """
        request = _rpc.health_request(service)
        return _rpc.health_of(self._unary(_rpc.HEALTH, request, timeout, RetryPolicy(1)))

    def abort(self, request_id: str, *, timeout: float | None = None) -> None:
        """Ends a request by its id; its stream ends with CANCELLED. NOT_FOUND when no
        such request is running or waiting.
        """
        self._unary(_rpc.ABORT, _rpc.abort_request(request_id), timeout)

    def drain(self, *, timeout: float | None = None) -> int:
        """Lets the server finish its requests, admit no more, and exit. Returns at once,
        with the number of requests that were still running or waiting.
        """
        response: Any = self._unary(_rpc.DRAIN, control_pb2.DrainRequest(), timeout)
        return int(response.remaining)

    def close(self) -> None:
        with self._lock:
            streams = list(self._streams)
        for stream in streams:  # also one that waits for its next try
            stream.cancel()
        self._channel.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _add_sequence(
        self,
        prompt: Prompt | None,
        from_state: State | None,
        timeout: float | None,
        params: SequenceParams,
        own_state: bool = False,
    ) -> Sequence:
        sequence = Sequence(self, prompt, from_state, timeout, params, own_state)
        with self._lock:
            self._streams.add(sequence)
        return sequence

    def _attempts(
        self, timeout: float | None, request: Message, retry: RetryPolicy | None = None
    ) -> Attempts:
        seconds = self._timeout if timeout is None else timeout
        metadata_bytes = _channel.metadata_bytes(self._metadata)
        return Attempts(retry or self._retry, seconds, request.ByteSize(), metadata_bytes)

    def _unary(
        self,
        method: _rpc.Method,
        request: Message,
        timeout: float | None,
        retry: RetryPolicy | None = None,
    ) -> Message:
        attempts = self._attempts(timeout, request, retry)
        call: grpc.UnaryUnaryMultiCallable[Message, Message] = self._channel.unary_unary(
            method.path, _rpc.serialize, method.response.FromString
        )
        while True:
            try:
                return call(request, timeout=attempts.remaining(), metadata=self._metadata)
            except ValueError:  # gRPC's for a channel that is closed
                raise closed() from None
            except grpc.RpcError as failure:
                error = from_rpc_error(failure)
            delay = attempts.delay_after(error)
            if delay is None:
                raise error
            time.sleep(delay)
