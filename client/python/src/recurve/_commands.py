"""The commands of one Decode call, and what its responses add up to."""

from __future__ import annotations

import array
from collections import deque

from recurve._errors import RecurveError, StatusCode, data_loss, precondition
from recurve._request import (
    LogitsMode,
    Prompt,
    SequenceParams,
    State,
    build_command,
    build_options,
)
from recurve._types import (
    CommandResult,
    LogitsRow,
    TokenLogprob,
    Tokens,
    finish_reason,
    token_logprob,
    usage_of,
)
from recurve.v1 import inference_pb2 as pb


class Commands:
    """Turns commands into requests and responses into results; knows what the server
    holds. Sends nothing.

    A command is one request, or two: a prompt that is still to be sent goes with the
    first command, or before it if that appends something else. `next_request` gives
    them one after the other.

    Thread safety: none; commands run one at a time.
    """

    def __init__(
        self, prompt: Prompt | None, from_state: State | None, params: SequenceParams
    ) -> None:
        build_command(prompt, 0, "none", False)  # refuses what no command could have
        self.prompt = prompt
        self.admitted: pb.Admitted | None = None
        self.answered = False  # whether any response has come
        self._options: pb.DecodeRequest | None = build_options(from_state, params)
        self._length = 0
        # Points to the number of tokens that were generated before them, in order.
        self._kept: dict[int, int] = {}
        self._rollback: int | None = None
        self._generated = 0
        self._waiting: deque[pb.DecodeRequest] = deque()
        self._running: pb.DecodeRequest | None = None
        # What the running command, or the last one, has brought.
        self._done: pb.DecodeResponse | None = None
        self._ids: list[int] = []
        self._text: list[str] = []
        self._logprobs: list[TokenLogprob] = []
        self._logits: list[LogitsRow] = []

    @property
    def length(self) -> int:
        return self._length if self._rollback is None else self._rollback

    @property
    def kept(self) -> tuple[int, ...]:
        return tuple(self._kept)

    @property
    def rolled_back_to(self) -> int | None:
        """The point that the next command goes back to, if any."""
        return self._rollback

    @property
    def running(self) -> bool:
        """Whether a command is not done."""
        return bool(self._waiting) or self._running is not None

    def rollback(self, to: int) -> None:
        """Raises OUT_OF_RANGE unless `to` is a kept point."""
        self.check_idle()
        if to not in self._kept:
            raise RecurveError(StatusCode.OUT_OF_RANGE, f"to is {to!r}; {self._nearest(to)}")
        self._rollback = to
        self._kept = {point: count for point, count in self._kept.items() if point <= to}

    def begin(
        self, append: Prompt | None, generate: int, logits: LogitsMode, keep: bool
    ) -> None:
        """Begins a command. Raises, and changes nothing, for a value of a wrong type."""
        self.check_idle()
        request = build_command(append, generate, logits, keep)
        requests = [request]
        if self.prompt is not None:
            if append is None:
                request = build_command(self.prompt, generate, logits, keep)
                requests = [request]
            else:
                requests = [build_command(self.prompt, 0, "none", False), request]
        if self._options is not None:
            requests[0].MergeFrom(self._options)
        if self._rollback is not None:
            requests[0].rollback_to = self._rollback
            self._generated = self._kept[self._rollback]
        self.prompt = self._options = self._rollback = None
        self._waiting.extend(requests)

    def next_request(self) -> pb.DecodeRequest | None:
        """The request to send before the next response is read, if any."""
        if self._running is not None or not self._waiting:
            return None
        self._clear()
        self._running = self._waiting.popleft()
        return self._running

    def first_request(self) -> pb.DecodeRequest:
        """The one to send again on another try. REQUIRES: not `answered`."""
        assert self._running is not None
        return self._running

    def add(self, response: pb.DecodeResponse) -> Tokens | None:
        """What the response adds for the caller, if anything.

        Raises DATA_LOSS when it does not continue what came before.
        """
        request = self._running
        if request is None:
            raise data_loss("a response follows the end of its command")
        self.answered = True
        if response.HasField("admitted"):
            self.admitted = response.admitted
        for row in response.logits:
            self._logits.append(LogitsRow(row.position, array.array("f", row.values)))
        piece = self._add_tokens(response.tokens) if response.HasField("tokens") else None
        if response.done:
            counted = response.usage.completion_tokens
            if counted != self._generated:
                raise data_loss(
                    f"the server counts {counted} generated tokens, but "
                    f"{self._generated} were received"
                )
            self._length = response.sequence_tokens
            if request.keep:
                self._kept[self._length] = self._generated
            self._done = response
            self._running = None
        return piece

    def result(self) -> CommandResult:
        """Of the last command. REQUIRES: it is done."""
        done = self._done
        assert done is not None and not self.running
        return CommandResult(
            token_ids=tuple(self._ids),
            text="".join(self._text),
            logprobs=tuple(self._logprobs),
            logits=tuple(self._logits),
            finish_reason=finish_reason(done.reason),
            stop_string=done.stop_string,
            usage=usage_of(done.usage),
            length=done.sequence_tokens,
        )

    def snapshot_point(self, at: int | None) -> int | None:
        """The point that the server is to take a state of; None: the end.

        Raises OUT_OF_RANGE for a point that a rollback has dropped, though the server
        learns of that with the next command only.
        """
        self.check_idle()
        if self._rollback is None:
            return at
        if at is not None and at not in self._kept:
            raise RecurveError(StatusCode.OUT_OF_RANGE, f"at is {at!r}; {self._nearest(at)}")
        return self._rollback if at is None else at

    def check_idle(self) -> None:
        if self.running:
            raise precondition("a command is not done: read its stream to the end first")

    def _clear(self) -> None:
        self._done = None
        self._ids = []
        self._text = []
        self._logprobs = []
        self._logits = []

    def _add_tokens(self, tokens: pb.Tokens) -> Tokens | None:
        if tokens.index != self._generated:
            raise data_loss(
                f"a response starts at generated token {tokens.index}, but "
                f"{self._generated} came before it"
            )
        piece = Tokens(
            index=tokens.index,
            ids=tuple(tokens.ids),
            text=tokens.text,
            logprobs=tuple(token_logprob(entry) for entry in tokens.logprobs),
        )
        self._generated += len(piece.ids)
        self._ids += piece.ids
        self._text.append(piece.text)
        self._logprobs += piece.logprobs
        return piece if piece.ids or piece.text else None

    def _nearest(self, to: int) -> str:
        if not self._kept or not isinstance(to, int):
            return "no command has kept a point" if not self._kept else "expected a kept point"
        return f"the nearest point kept is {min(self._kept, key=lambda point: abs(point - to))}"
