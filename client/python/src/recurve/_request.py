"""Keyword arguments to the requests of the protos."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypedDict

from google.protobuf.message import Message

from recurve._errors import invalid
from recurve._types import StateInfo
from recurve.v1 import inference_pb2 as pb
from recurve.v1 import state_pb2

# Text, or token ids that are used as they are.
Prompt = str | Sequence[int]

# The id or name of a state, or what the server said about it, for its id.
State = str | StateInfo

# Which logits a command returns. "next": of the last appended token and of every
# generated one but the last: the rows that tokens are, or would be, drawn from.
# "all": of every position that the command computes.
LogitsMode = Literal["none", "next", "all"]
_LOGITS = {
    "none": pb.LOGITS_MODE_NONE,
    "next": pb.LOGITS_MODE_NEXT,
    "all": pb.LOGITS_MODE_ALL,
}


class SequenceParams(TypedDict, total=False):
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
    seed: int | None  # 64 bits; default: chosen by the server, in `seed` of the result
    stop_token_ids: Sequence[int] | None  # at most 64
    stop_strings: Sequence[str] | None  # at most 16, of 1 to 256 bytes
    ignore_eos: bool | None  # default False
    min_tokens: int | None  # the first that end nothing; at most max_new_tokens; default 0
    include_stop_str_in_output: bool | None  # text ends after the stop; default False
    skip_special_tokens: bool | None  # in the text; default True
    priority: int | None  # -100 to 100, higher first; default 0
    logprobs: int | None  # 0: of the chosen tokens; n: and the n likeliest, to 20
    cache_key: str | None  # divides the prefix cache; at most 256 bytes
    snapshot_at: Sequence[int] | None  # at most 4: tokens of the prompt to keep


class Params(SequenceParams, total=False):
    """`SequenceParams`, and what `generate` alone has."""

    max_new_tokens: int | None  # at least 1, or 0 with prompt_logprobs; default: the server's
    prompt_logprobs: int | None  # of the prompt's tokens, as `logprobs`; default: none
    n: int | None  # continuations, to 16; default 1
    from_state: State | None  # the prompt continues it; default: begins a sequence


_SAMPLING = frozenset(pb.SamplingParams.DESCRIPTOR.fields_by_name)
_STOPPING = frozenset(pb.StoppingParams.DESCRIPTOR.fields_by_name)


def build_request(prompt: Prompt | None, params: Params) -> pb.GenerateRequest:
    """The request. Sends nothing and checks types only; limits are the server's.

    Raises RecurveError (INVALID_ARGUMENT, with the field) for a value that its
    field cannot hold, TypeError for a keyword that does not exist.
    """
    request = pb.GenerateRequest()
    set_tokens(request, "prompt", prompt)
    _set_params(request, params, Params.__annotations__, "generate")
    return request


def build_options(from_state: State | None, params: SequenceParams) -> pb.DecodeRequest:
    """What only the first command of a sequence has. Raises as `build_request`."""
    request = pb.DecodeRequest()
    if from_state is not None:
        set_field(request, "from_state", state_key(from_state, "from_state"), "from_state")
    _set_params(request, params, SequenceParams.__annotations__, "sequence")
    return request


def build_command(
    append: Prompt | None, generate: int, logits: LogitsMode, keep: bool
) -> pb.DecodeRequest:
    """One command. Raises as `build_request`."""
    request = pb.DecodeRequest()
    set_tokens(request, "append", append)
    set_field(request, "generate", generate, "generate")
    if not isinstance(logits, str) or logits not in _LOGITS:
        raise invalid("logits", f"is {logits!r}; expected 'none', 'next' or 'all'")
    request.logits = _LOGITS[logits]
    set_field(request, "keep", keep, "keep")
    return request


def build_state_options(
    name: str | None, ttl: float | None, pinned: bool
) -> state_pb2.StateOptions:
    """Raises as `build_request`."""
    options = state_pb2.StateOptions()
    if name is not None:
        set_field(options, "name", name, "options.name")
    if ttl is not None:
        set_field(options, "ttl_seconds", ttl, "options.ttl_seconds")
    set_field(options, "pinned", pinned, "options.pinned")
    return options


def state_key(state: State, path: str) -> str:
    """Raises RecurveError (INVALID_ARGUMENT) for what can name no state."""
    key = state.id if isinstance(state, StateInfo) else state
    if not isinstance(key, str) or not key:
        raise invalid(path, f"is {state!r}; expected the id or name of a state, or a StateInfo")
    return key


def set_tokens(request: Message, field: str, tokens: Prompt | None) -> None:
    """Sets one of FIELD_ids and FIELD_text, or neither for None."""
    if tokens is None:
        return
    if isinstance(tokens, str):
        set_field(request, f"{field}_text", tokens, f"{field}_text")
        return
    # Also for an empty list: the server then says that it is empty.
    ids = getattr(request, f"{field}_ids")
    ids.SetInParent()
    _extend(ids, "ids", tokens, f"{field}_ids")


def _set_params(
    request: pb.GenerateRequest | pb.DecodeRequest,
    params: Mapping[str, Any],
    known: Mapping[str, Any],
    method: str,
) -> None:
    for name, value in params.items():
        if name not in known:
            raise TypeError(f"{method}() has no parameter '{name}'")
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
        elif name == "from_state":
            set_field(message, name, state_key(value, path), path)
        else:
            set_field(message, name, value, path)


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
