"""Sequences that the caller drives, for the blocking client."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Unpack

import grpc

from recurve._commands import Commands
from recurve._errors import RecurveError, cancelled, closed, data_loss, from_rpc_error, precondition
from recurve._pipe import Pipe
from recurve._request import LogitsMode, Prompt, SequenceParams, State
from recurve._retry import Attempts
from recurve._states import fork_request, snapshot_request
from recurve._types import CommandResult, StateInfo, Tokens
from recurve.v1 import inference_pb2 as pb

if TYPE_CHECKING:
    from recurve._sync import Client


class CommandStream(Iterator[Tokens]):
    """One command under way. Made by `Sequence.stream`.

    Iterate to get `Tokens` as they are made, or call `result` for the whole. The
    sequence takes its next command when this one was read to its end.

    Both raise RecurveError when the call fails, and again when asked again.
    """

    def __init__(self, sequence: Sequence) -> None:
        self._sequence = sequence
        self._result: CommandResult | None = None

    def __next__(self) -> Tokens:
        while self._result is None:
            piece = self._sequence._advance()
            if not self._sequence._commands.running:
                self._result = self._sequence._commands.result()
                self._sequence._drop_state()
            if piece is not None:
                return piece
        raise StopIteration

    def result(self) -> CommandResult:
        """Waits for the end. Includes what has been iterated over before."""
        for _ in self:
            pass
        assert self._result is not None
        return self._result


class Sequence:
    """A sequence that the caller drives, command by command. Made by `Client.sequence`.

    The first command opens a `Decode` call, which lasts until the sequence is closed.
    Between commands the server may take its memory for other requests; the next
    command restores it exactly. Use it in a `with` block: leaving the block closes it.

    Commands raise RecurveError. One that the server refuses ends the call: every
    later command raises the same error. A value of a wrong type, a rollback to a point
    that is not kept and what `snapshot` and `fork` raise leave the sequence as it was.
    The first command is tried again by the client's `RetryPolicy` until the server has
    answered; after that nothing is tried again, since the sequence is lost.

    Thread safety: one thread drives it; `cancel` may be called from any.
    """

    def __init__(
        self,
        client: Client,
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
        self._cancelled = threading.Event()
        self._attempts: Attempts | None = None
        self._call: Any = None
        self._requests: Pipe[pb.DecodeRequest] = Pipe()

    @property
    def length(self) -> int:
        """Tokens of the sequence, where the next command goes on; 0 before the first
        command is done.
        """
        return self._commands.length

    @property
    def kept(self) -> tuple[int, ...]:
        """The points that `rollback` can go back to, as numbers of tokens."""
        return self._commands.kept

    @property
    def seed(self) -> int | None:
        """In use: the parameter, the state's, or the one the server chose; None before
        the first command is answered.
        """
        admitted = self._commands.admitted
        return None if admitted is None else admitted.seed

    def request_id(self) -> str | None:
        """The id for `Client.abort`. Waits until the server has accepted the first
        command; None when there was none, or it was refused.
        """
        if self._call is None:
            return None
        try:
            metadata = self._call.initial_metadata()
        except grpc.RpcError:
            return None
        return next((str(v) for k, v in metadata or () if k == "recurve-request-id"), None)

    def append(
        self, tokens: Prompt, *, logits: LogitsMode = "none", keep: bool = False
    ) -> CommandResult:
        """Appends tokens, and waits until the server has computed them.

        Args:
          tokens: text for the model's tokenizer, or ids, used as they are. Text after
            a prompt that was not sent yet is encoded by itself, not with the prompt.
          logits: which rows to return; see `LogitsMode`.
          keep: keeps the point that the command reaches (its `length`) for `rollback`.
            At most 16 at a time; one more ends the sequence with RESOURCE_EXHAUSTED.
        """
        return self._begin(tokens, 0, logits, keep).result()

    def generate(
        self,
        n: int,
        *,
        append: Prompt | None = None,
        logits: LogitsMode = "none",
        keep: bool = False,
    ) -> CommandResult:
        """Appends tokens, if any, and generates at most `n` after them. Stops earlier as
        the parameters say; a later command may go on from there.

        Text may be held back when a command ends, if it is an unfinished character or
        may begin a stop string. It comes with the next command that generates, or from
        `close`.
        """
        return self._begin(append, n, logits, keep).result()

    def stream(
        self,
        n: int,
        *,
        append: Prompt | None = None,
        logits: LogitsMode = "none",
        keep: bool = False,
    ) -> CommandStream:
        """As `generate`, but returns at once, to iterate over tokens as they are made."""
        return self._begin(append, n, logits, keep)

    def rollback(self, to: int) -> None:
        """Goes back to a kept point, a `length` of an earlier result. What came later is
        forgotten, kept points too; the same commands give the same tokens again.

        Sends nothing: it is a part of the next command. `length`, `kept`, `snapshot`
        and `fork` behave as if it were done.

        Raises OUT_OF_RANGE, naming the nearest kept point, for another one.
        """
        self._check_usable()
        self._commands.rollback(to)

    def snapshot(
        self,
        at: int | None = None,
        name: str | None = None,
        ttl: float | None = None,
        pinned: bool = False,
    ) -> StateInfo:
        """Makes a state of the sequence, which goes on. A prompt that was not sent yet is
        appended first.

        Args:
          at: a kept point; None: the end.
          name: may be used in place of the id; 128 bytes of letters, digits, "-_.".
          ttl: seconds that the state lives after its last use, to 604800; None: 600.
          pinned: it lives without an end. Excludes `ttl`.

        Raises OUT_OF_RANGE, naming the nearest kept point, for another one;
        RESOURCE_EXHAUSTED when states have no room for it or the name is taken;
        FAILED_PRECONDITION when the server keeps no states, or before a first command.
        Tried once: a repeat could make two states.
        """
        self._open_to_snapshot()
        point = self._commands.snapshot_point(at)
        request = snapshot_request(self._commands.admitted, point, name, ttl, pinned)
        return self._client.states._make_snapshot(request)

    def fork(
        self,
        n: int,
        *,
        ttl: float | None = None,
        timeout: float | None = None,
        **params: Unpack[SequenceParams],
    ) -> list[Sequence]:
        """`n` new sequences that continue this one, which goes on. A prompt that was not
        sent yet is appended first.

        Each child is a call of its own, which its first command opens, with a seed of
        its own: at a temperature above 0 they draw different tokens. It continues from
        a state that was made for it alone and is released when its first command is
        done, or when it is closed before. A child that is just dropped leaves the state
        to its time to live.

        Args:
          n: 1 to 16.
          ttl: seconds for the first command of each child; None: 600. Later it is
            NOT_FOUND.
          timeout: of each child; None: that of this sequence.
          **params: in place of the parameters of this sequence. `seed` is the one from
            which the children's are derived; None: drawn. `snapshot_at` is not
            inherited.

        Raises what `snapshot` raises, and INVALID_ARGUMENT for a wrong `n`. Close the
        children: they do not end with this sequence.
        """
        # The state gets its id below.
        request = fork_request("-", n, None, params.get("seed"), ttl)
        inherited: SequenceParams = {**self._params, **params}
        inherited.pop("seed", None)
        if "snapshot_at" not in params:
            inherited.pop("snapshot_at", None)
        Commands(None, None, inherited)  # refuses wrong parameters before it makes states
        base = self.snapshot(ttl=ttl)
        try:
            request.state = base.id
            states = self._client.states._make_fork(request)
        finally:
            self._client.states._drop(base)
        seconds = self._timeout if timeout is None else timeout
        return [self._client._add_sequence(None, s, seconds, inherited, True) for s in states]

    def close(self) -> str:
        """Ends the sequence, and returns text that its last command held back. Without
        effect, and "", when it is closed, has failed, or a command is not done (which
        is cancelled).

        Raises RecurveError if the call had ended in another way.
        """
        if self._closed:
            return ""
        self._closed = True
        self._drop_state()
        if self._call is None or self._error is not None or self._commands.running:
            self.cancel()
            return ""
        forgotten = self._commands.rolled_back_to is not None
        self._requests.close()
        try:
            text = "".join([response.tokens.text for response in self._call])
        except grpc.RpcError as failure:
            raise cancelled() if self._cancelled.is_set() else from_rpc_error(failure) from None
        return "" if forgotten else text

    def cancel(self) -> None:
        """Ends the call at once. A command under way raises CANCELLED, and so do later
        ones.
        """
        self._cancelled.set()
        self._end_call()

    def __enter__(self) -> Sequence:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            self.cancel()
        with contextlib.suppress(RecurveError):  # every command has had its answer
            self.close()

    def __del__(self) -> None:
        if hasattr(self, "_requests"):  # not after an __init__ that raised
            self._end_call()

    def _begin(
        self, append: Prompt | None, n: int, logits: LogitsMode, keep: bool
    ) -> CommandStream:
        self._check_usable()
        self._commands.begin(append, n, logits, keep)
        try:
            self._send_next()
        except RecurveError as error:
            self._error = error
            raise
        return CommandStream(self)

    def _send_next(self) -> None:
        request = self._commands.next_request()
        if request is None:
            return
        if self._attempts is None:
            self._attempts = self._client._attempts(self._timeout, request)
            self._open()
        else:
            self._requests.put(request)

    def _open(self) -> None:
        assert self._attempts is not None
        self._requests = Pipe()
        self._requests.put(self._commands.first_request())
        try:
            self._call = self._client._decode(
                self._requests,
                timeout=self._attempts.remaining(),
                metadata=self._client._metadata,
            )
        except ValueError:  # gRPC's for a channel that is closed
            raise closed() from None
        if self._cancelled.is_set():  # by a cancel before the call
            self._end_call()

    def _advance(self) -> Tokens | None:
        """One response, or the wait before another try."""
        if self._error is not None:
            raise self._error
        try:
            self._send_next()
            if self._cancelled.is_set():
                raise cancelled()
            try:
                response = next(self._call)
            except StopIteration:
                raise data_loss("the call ended with OK, but the command was not done") from None
            except grpc.RpcError as failure:
                if self._cancelled.is_set():
                    raise cancelled() from None
                self._wait_to_retry(from_rpc_error(failure))
                return None
            return self._commands.add(response)
        except RecurveError as error:
            self._error = error
            self._end_call()
            raise

    def _wait_to_retry(self, error: RecurveError) -> None:
        assert self._attempts is not None
        if self._commands.answered:
            raise error
        delay = self._attempts.delay_after(error)
        if delay is None:
            raise error
        if self._cancelled.wait(delay):
            raise cancelled()
        self._requests.stop()
        self._open()

    def _end_call(self) -> None:
        self._requests.stop()
        if self._call is not None:
            self._call.cancel()

    def _check_usable(self) -> None:
        if self._error is not None:
            raise self._error
        if self._closed:
            raise precondition("the sequence is closed")
        if self._cancelled.is_set():
            raise cancelled()

    def _open_to_snapshot(self) -> None:
        self._check_usable()
        self._commands.check_idle()
        if self._commands.prompt is not None:
            self._begin(None, 0, "none", False).result()
        if self._commands.admitted is None:
            raise precondition("the sequence has no state before its first command")

    def _drop_state(self) -> None:
        """Releases the state that this sequence alone continues."""
        state, self._state = self._state, None
        if state is not None:
            self._client.states._drop(state)
