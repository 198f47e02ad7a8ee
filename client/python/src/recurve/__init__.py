"""Client for the Recurve inference server.

    from recurve import Client

    with Client("127.0.0.1:50051") as client:
        for tokens in client.generate("def add(a, b):", max_new_tokens=48):
            print(tokens.text, end="", flush=True)

`AsyncClient` is the same for asyncio. Everything that fails raises `RecurveError`,
with `code`, `message` and `field`. Times are in seconds, lengths in tokens. The
messages of the protos are in `recurve.v1`.
"""

from recurve._aio import AsyncClient, AsyncGenerateStream
from recurve._channel import Tls
from recurve._errors import RecurveError, StatusCode
from recurve._request import Params, Prompt
from recurve._retry import RetryPolicy
from recurve._sync import Client, GenerateStream
from recurve._types import (
    FinishReason,
    Generation,
    Health,
    Load,
    ModelInfo,
    ServerInfo,
    Timings,
    TokenLogprob,
    Tokens,
    Usage,
)

__all__ = [
    "AsyncClient",
    "AsyncGenerateStream",
    "Client",
    "FinishReason",
    "GenerateStream",
    "Generation",
    "Health",
    "Load",
    "ModelInfo",
    "Params",
    "Prompt",
    "RecurveError",
    "RetryPolicy",
    "ServerInfo",
    "StatusCode",
    "Timings",
    "Tls",
    "TokenLogprob",
    "Tokens",
    "Usage",
]
