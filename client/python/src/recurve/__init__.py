"""Client for the Recurve inference server.

    from recurve import Client

    with Client("127.0.0.1:50051") as client:
        for tokens in client.generate("def add(a, b):", max_new_tokens=48):
            print(tokens.text, end="", flush=True)

`Client.sequence` is for callers that drive a sequence: append, generate, roll back,
fork. `AsyncClient` is the same for asyncio. Everything that fails raises `RecurveError`,
with `code`, `message` and `field`. Times are in seconds, lengths in tokens. The
messages of the protos are in `recurve.v1`.
"""

from recurve._aio import AsyncClient, AsyncGenerateStream
from recurve._aio_sequence import AsyncCommandStream, AsyncSequence
from recurve._aio_states import AsyncStates
from recurve._channel import Tls
from recurve._errors import RecurveError, StatusCode
from recurve._request import LogitsMode, Params, Prompt, SequenceParams, State
from recurve._retry import RetryPolicy
from recurve._sequence import CommandStream, Sequence
from recurve._states import States
from recurve._sync import Client, GenerateStream
from recurve._types import (
    CacheUse,
    CommandResult,
    FinishReason,
    Generation,
    Health,
    Load,
    LogitsRow,
    ModelInfo,
    PromptToken,
    ServerInfo,
    StateInfo,
    StateList,
    Timings,
    TokenLogprob,
    Tokens,
    Usage,
)

__all__ = [
    "AsyncClient",
    "AsyncCommandStream",
    "AsyncGenerateStream",
    "AsyncSequence",
    "AsyncStates",
    "CacheUse",
    "Client",
    "CommandResult",
    "CommandStream",
    "FinishReason",
    "GenerateStream",
    "Generation",
    "Health",
    "Load",
    "LogitsMode",
    "LogitsRow",
    "ModelInfo",
    "Params",
    "Prompt",
    "PromptToken",
    "RecurveError",
    "RetryPolicy",
    "Sequence",
    "SequenceParams",
    "ServerInfo",
    "State",
    "StateInfo",
    "StateList",
    "States",
    "StatusCode",
    "Timings",
    "Tls",
    "TokenLogprob",
    "Tokens",
    "Usage",
]
