"""The server's answers as plain immutable values. Fields are those of the protos."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from google.protobuf.message import Message

from recurve.v1 import inference_pb2 as pb


class FinishReason(StrEnum):
    """Why generation ended."""

    LENGTH = "length"  # max_new_tokens were generated
    EOS = "eos"  # an end-of-sequence token (the last id)
    STOP_TOKEN = "stop_token"  # one of stop_token_ids (the last id)
    STOP_STRING = "stop_string"  # one of stop_strings; the text ends before it
    UNKNOWN = "unknown"  # a reason of a newer server


class Health(StrEnum):
    """The health of a server or of a service."""

    SERVING = "SERVING"
    NOT_SERVING = "NOT_SERVING"
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True)
class TokenLogprob:
    """Natural logarithms of probabilities, before temperature and truncation."""

    logprob: float  # of the chosen token
    top: tuple[tuple[int, float], ...]  # (id, logprob) of the likeliest, best first


@dataclass(frozen=True)
class Tokens:
    """A piece of a stream: one or more tokens, or text that was held back."""

    index: int  # of ids[0] among the generated tokens, from 0
    ids: tuple[int, ...]
    text: str  # whole characters; empty when the model has no tokenizer
    logprobs: tuple[TokenLogprob, ...]  # one for each id when asked for, else empty


@dataclass(frozen=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int
    preemptions: int  # how often the sequence lost its memory to others


@dataclass(frozen=True)
class Timings:
    """Seconds as the server measured them, from its acceptance of the request.

    After a retry they are those of the last try.
    """

    queue_seconds: float
    time_to_first_token_seconds: float
    total_seconds: float


@dataclass(frozen=True)
class Generation:
    """A whole stream."""

    request_id: str
    seed: int  # in use: the request's, or the one the server chose
    token_ids: tuple[int, ...]
    text: str
    logprobs: tuple[TokenLogprob, ...]
    finish_reason: FinishReason
    stop_string: str  # the one that ended it, or empty
    usage: Usage
    timings: Timings


@dataclass(frozen=True)
class ModelInfo:
    name: str
    family: str
    parameters: int
    num_layers: int
    hidden_size: int
    vocab_size: int
    mixers: tuple[str, ...]  # of each layer: "tpa" or "linear"
    max_model_len: int  # tokens, prompt and output together
    default_max_new_tokens: int
    tokenizer: str  # its kind; empty: the server takes token ids only
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    weight_bytes: int
    cache_bytes_per_token: int
    state_bytes_per_sequence: int
    # The longest first prompt of a model that processes prompts as a whole.
    max_prompt_tokens: int | None


@dataclass(frozen=True)
class ServerInfo:
    version: str
    device: str  # "cpu" or "cuda"
    weight_dtype: str
    state_dtype: str
    kv_dtype: str
    max_num_seqs: int
    max_num_batched_tokens: int
    max_queued_requests: int
    tpa_pages: int
    page_tokens: int
    uptime_seconds: float
    draining: bool


@dataclass(frozen=True)
class Load:
    """Of the whole server or, where `own` says so, of the caller's tenant alone."""

    num_requests_running: int
    num_requests_waiting: int
    state_slots_used: int
    state_slots_total: int
    tpa_pages_used: int
    tpa_pages_total: int
    prompt_tokens_total: int
    generation_tokens_total: int
    preemptions_total: int
    steps_total: int
    open_streams: int
    # The used part of the server's slots or pages, the larger of both: 0, 0.25, 0.5, 0.75 or 1.
    busy: float
    own: bool


_T = TypeVar("_T", Usage, Timings, ModelInfo, ServerInfo, Load)


def from_message(cls: type[_T], message: Message) -> _T:
    """The value of `cls` with the fields of a message that has the same names."""
    values: dict[str, object] = {}
    for field in dataclasses.fields(cls):
        value = getattr(message, field.name)
        if str(field.type).startswith("tuple"):
            value = tuple(value)
        elif message.DESCRIPTOR.fields_by_name[field.name].has_presence:
            value = value if message.HasField(field.name) else None
        values[field.name] = value
    return cls(**values)  # type: ignore[arg-type]


def finish_reason(value: pb.FinishReason) -> FinishReason:
    names = {
        pb.FINISH_REASON_LENGTH: FinishReason.LENGTH,
        pb.FINISH_REASON_EOS: FinishReason.EOS,
        pb.FINISH_REASON_STOP_TOKEN: FinishReason.STOP_TOKEN,
        pb.FINISH_REASON_STOP_STRING: FinishReason.STOP_STRING,
    }
    return names.get(value, FinishReason.UNKNOWN)


def token_logprob(message: pb.TokenLogprob) -> TokenLogprob:
    return TokenLogprob(message.logprob, tuple((t.id, t.logprob) for t in message.top))
