"""The events of one Generate stream added up and checked, retries included."""

from __future__ import annotations

from recurve._errors import data_loss
from recurve._types import (
    Generation,
    PromptToken,
    Timings,
    TokenLogprob,
    Tokens,
    finish_reason,
    from_message,
    token_logprob,
    usage_of,
)
from recurve.v1 import inference_pb2 as pb


class Assembly:
    """Turns events into the pieces to deliver, each token and character once.

    After `restart` the events of a new try are expected to repeat what has been
    delivered; it is compared and left out. The server makes the same tokens again,
    since they depend on model, request and seed only.

    Thread safety: none; events of a stream arrive one at a time.
    """

    def __init__(self, samples: int = 1) -> None:
        # What has another number the server refuses.
        self._samples = [_Sample(i) for i in range(min(max(samples, 1), 64))]

    @property
    def admitted(self) -> pb.Admitted | None:
        """Of the first continuation, whose seed is the request's."""
        return self._samples[0].admitted

    @property
    def finished(self) -> bool:
        return all(sample.finished is not None for sample in self._samples)

    @property
    def delivered(self) -> bool:
        """Whether the caller has received anything."""
        return any(sample.delivered for sample in self._samples)

    def restart(self) -> None:
        for sample in self._samples:
            sample.restart()

    def add(self, event: pb.GenerateEvent) -> Tokens | None:
        """What the event adds for the caller, if anything.

        Raises DATA_LOSS when it does not continue what came before.
        """
        if event.sample >= len(self._samples):
            raise data_loss(
                f"an event is of continuation {event.sample}; "
                f"{len(self._samples)} were asked for"
            )
        return self._samples[event.sample].add(event)

    def generations(self) -> tuple[Generation, ...]:
        """All continuations. Raises DATA_LOSS if the stream has ended without their end."""
        return tuple(sample.generation() for sample in self._samples)


class _Sample:
    """One continuation."""

    def __init__(self, index: int) -> None:
        self._index = index
        self.admitted: pb.Admitted | None = None
        self.finished: pb.Finished | None = None
        self._ids: list[int] = []
        self._text: list[str] = []
        self._logprobs: list[TokenLogprob] = []
        self._prompt: list[PromptToken] = []
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
        self._prompt = []  # delivered with the whole only
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
        elif kind == "prompt_logprobs":
            self._add_prompt(event.prompt_logprobs)
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
            usage=usage_of(end.usage),
            timings=from_message(Timings, end.timings),
            prompt_logprobs=tuple(self._prompt),
        )

    def _add_prompt(self, prompt: pb.PromptLogprobs) -> None:
        if prompt.index != len(self._prompt) + 1:
            raise data_loss(
                f"log-probabilities of the prompt start at token {prompt.index}, but "
                f"{len(self._prompt)} came before them"
            )
        for token, entry in zip(prompt.ids, prompt.logprobs, strict=True):
            logprob = token_logprob(entry)
            self._prompt.append(PromptToken(token, logprob.logprob, logprob.top))

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
            sample=self._index,
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
