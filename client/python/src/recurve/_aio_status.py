"""How a call of grpc.aio that sends a stream has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import grpc

from recurve._errors import RecurveError, from_status

# What grpc.aio makes of a message that it could not send because the server had
# ended the call.
_NOT_SENT = (grpc.StatusCode.INTERNAL, "Internal error from Core")

# Polls of 10 ms for the server's own status to come after that.
_POLLS = 100


class Ending:
    """The server's status of one call, which grpc.aio may hide.

    A message that cannot be sent any more sets a status of grpc.aio's own: before the
    server's, which comes in its place later, or after it, which is then lost. So this
    takes the first, and waits for another if that is grpc.aio's own.
    """

    def __init__(self, call: Any) -> None:
        self._call = call
        self._first: tuple[Any, Any, Any] | None = None
        call.add_done_callback(self._keep)

    async def error(self) -> RecurveError | None:
        """None: OK. Waits for the end of the call."""
        for _ in range(_POLLS):
            now = (
                await self._call.code(),
                await self._call.details(),
                await self._call.trailing_metadata(),
            )
            for status in (self._first, now):
                if status is not None and status[:2] != _NOT_SENT:
                    return None if status[0] == grpc.StatusCode.OK else from_status(*status)
            await asyncio.sleep(0.01)
        return from_status(*now)

    def _keep(self, call: Any) -> None:
        self._first = (
            _without_waiting(call.code()),
            _without_waiting(call.details()),
            _without_waiting(call.trailing_metadata()),
        )


def _without_waiting(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that has nothing to wait for."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    coroutine.close()
    return None
