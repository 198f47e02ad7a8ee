"""Keyword arguments of `generate` to the request of the proto."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict

from google.protobuf.message import Message

from recurve._errors import invalid
from recurve.v1 import inference_pb2 as pb

# Text, or token ids that are used as they are.
Prompt = str | Sequence[int]


class Params(TypedDict, total=False):
    """How to sample, when to stop, what to report. What is left out (or None) is
    left to the server, whose defaults are named.

    Tokens are chosen in the order: penalties and bias, temperature, top_k, top_p,
    min_p, then one draw. The server checks the ranges.
    """

    repetition_penalty: float | None  # 0.01 to 10; default 1: off
    presence_penalty: float | None  # -2 to 2; default 0
    frequency_penalty: float | None  # -2 to 2; default 0
    logit_bias: Mapping[int, float] | None  # added to an id's logit; -100 to 100
    temperature: float | None  # 0 (default): the likeliest token; to 100
    top_k: int | None  # 0 (default): all
    top_p: float | None  # above 0, at most 1 (default)
    min_p: float | None  # 0 (default) to 1, relative to the likeliest token
    seed: int | None  # 64 bits; default: chosen by the server, in Generation.seed
    max_new_tokens: int | None  # tokens, at least 1; default: the server's
    stop_token_ids: Sequence[int] | None  # at most 64
    stop_strings: Sequence[str] | None  # at most 16, of 1 to 256 bytes
    ignore_eos: bool | None  # default False
    priority: int | None  # -100 to 100, higher first; default 0
    logprobs: int | None  # 0: of the chosen tokens; n: and the n likeliest, to 20
    cache_key: str | None  # divides the prefix cache; at most 256 bytes
    snapshot_at: Sequence[int] | None  # at most 4: tokens of the prompt to keep


_SAMPLING = frozenset(pb.SamplingParams.DESCRIPTOR.fields_by_name)
_STOPPING = frozenset(pb.StoppingParams.DESCRIPTOR.fields_by_name)


def build_request(prompt: Prompt, params: Params) -> pb.GenerateRequest:
    """The request. Sends nothing and checks types only; limits are the server's.

    Raises RecurveError (INVALID_ARGUMENT, with the field) for a value that its
    field cannot hold, TypeError for a keyword that does not exist.
    """
    request = pb.GenerateRequest()
    if isinstance(prompt, str):
        set_field(request, "prompt_text", prompt, "prompt_text")
    else:
        # Also for an empty list: the server then says that the prompt is empty.
        request.prompt_ids.SetInParent()
        _extend(request.prompt_ids, "ids", prompt, "prompt_ids")
    for name, value in params.items():
        if name not in Params.__annotations__:
            raise TypeError(f"generate() has no parameter '{name}'")
        if value is None:
            continue
        message: Message = request
        path = name
        if name in _SAMPLING:
            message, path = request.sampling, f"sampling.{name}"
        elif name in _STOPPING:
            message, path = request.stopping, f"stopping.{name}"
        if name == "logit_bias":
            _update(request.sampling.logit_bias, value, path)
        elif name in ("stop_token_ids", "stop_strings", "snapshot_at"):
            _extend(message, name, value, path)
        else:
            set_field(message, name, value, path)
    return request


def set_field(message: Message, name: str, value: Any, path: str) -> None:
    """Raises RecurveError (INVALID_ARGUMENT, with `path`) for a wrong type."""
    try:
        setattr(message, name, value)
    except (TypeError, ValueError) as error:
        raise invalid(path, f"is {value!r}: {error}") from None


def _extend(message: Message, name: str, values: Any, path: str) -> None:
    # One text is a sequence of texts too, and never what was meant.
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise invalid(path, f"is {values!r}: expected a list")
    items = list(values)
    try:
        getattr(message, name).extend(items)
    except (TypeError, ValueError):
        # Again, one by one, to name the entry.
        for i, item in enumerate(items):
            try:
                getattr(message, name).append(item)
            except (TypeError, ValueError) as error:
                raise invalid(f"{path}[{i}]", f"is {item!r}: {error}") from None
        raise


def _update(entries: Any, values: Any, path: str) -> None:
    if not isinstance(values, Mapping):
        raise invalid(path, f"is {values!r}: expected a mapping of ids to numbers")
    for key, value in values.items():
        try:
            entries[key] = value
        except (TypeError, ValueError) as error:
            raise invalid(f"{path}[{key!r}]", f"is {value!r}: {error}") from None
