"""The events of one Generate stream added up and checked, retries included."""

from __future__ import annotations

from recurve._errors import data_loss
from recurve._types import (
    Generation,
    Timings,
    TokenLogprob,
    Tokens,
    Usage,
    finish_reason,
    from_message,
    token_logprob,
)
from recurve.v1 import inference_pb2 as pb


class Assembly:
    """Turns events into the pieces to deliver, each token and character once.

    After `restart` the events of a new try are expected to repeat what has been
    delivered; it is compared and left out. The server makes the same tokens again,
    since they depend on model, request and seed only.

    Thread safety: none; events of a stream arrive one at a time.
    """

    def __init__(self) -> None:
        self.admitted: pb.Admitted | None = None
        self.finished: pb.Finished | None = None
        self._ids: list[int] = []
        self._text: list[str] = []
        self._logprobs: list[TokenLogprob] = []
        # Text delivered before the current try.
        self._text_before = ""
        # Received in the current try.
        self._ids_received = 0
        self._text_received = 0

    @property
    def delivered(self) -> bool:
        """Whether the caller has received anything."""
        return bool(self._ids or self._text)

    def restart(self) -> None:
        # A whole answer may end with an error in place of OK.
        self.finished = None
        self._text_before = "".join(self._text)
        self._ids_received = 0
        self._text_received = 0

    def add(self, event: pb.GenerateEvent) -> Tokens | None:
        """What the event adds for the caller, if anything.

        Raises DATA_LOSS when it does not continue what came before.
        """
        if self.finished is not None:
            raise data_loss("an event follows the finished one")
        kind = event.WhichOneof("event")
        if kind == "admitted":
            self.admitted = event.admitted
        elif kind == "tokens":
            return self._add_tokens(event.tokens)
        elif kind == "finished":
            self._finish(event.finished)
        # Others are of a newer server: by the rules of the proto, skipped.
        return None

    def generation(self) -> Generation:
        """The whole. Raises DATA_LOSS if the stream has ended without its end."""
        end = self.finished
        if end is None:
            raise data_loss("the stream ended with OK, but without a finished event")
        admitted = self.admitted or pb.Admitted()
        return Generation(
            request_id=admitted.request_id,
            seed=admitted.seed,
            token_ids=tuple(self._ids),
            text="".join(self._text),
            logprobs=tuple(self._logprobs),
            finish_reason=finish_reason(end.reason),
            stop_string=end.stop_string,
            usage=from_message(Usage, end.usage),
            timings=from_message(Timings, end.timings),
        )

    def _add_tokens(self, tokens: pb.Tokens) -> Tokens | None:
        if tokens.index != self._ids_received:
            raise data_loss(
                f"tokens event starts at index {tokens.index}, but "
                f"{self._ids_received} tokens came before it"
            )
        ids = list(tokens.ids)
        logprobs = [token_logprob(entry) for entry in tokens.logprobs]
        old_ids = self._ids[self._ids_received : self._ids_received + len(ids)]
        text_end = self._text_received + len(tokens.text)
        old_text = self._text_before[self._text_received : text_end]
        if ids[: len(old_ids)] != old_ids or not tokens.text.startswith(old_text):
            raise data_loss(
                f"the retried stream differs from the one before within tokens "
                f"{self._ids_received} to {self._ids_received + len(ids)}"
            )
        self._ids_received += len(ids)
        self._text_received = text_end
        piece = Tokens(
            index=len(self._ids),
            ids=tuple(ids[len(old_ids) :]),
            text=tokens.text[len(old_text) :],
            logprobs=tuple(logprobs[len(old_ids) :]),
        )
        self._ids += piece.ids
        if piece.text:
            self._text.append(piece.text)
        self._logprobs += piece.logprobs
        return piece if piece.ids or piece.text else None

    def _finish(self, finished: pb.Finished) -> None:
        counted = finished.usage.completion_tokens
        if not counted == self._ids_received == len(self._ids):
            raise data_loss(
                f"the server counts {counted} generated tokens, but "
                f"{len(self._ids)} were received"
            )
        if self._text_received < len(self._text_before):
            raise data_loss("the retried stream has less text than the one before")
        self.finished = finished
