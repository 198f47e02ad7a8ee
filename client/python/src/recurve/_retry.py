"""When a failed call is made again, and how long to wait before."""

from __future__ import annotations

import numbers
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from recurve._errors import RecurveError, StatusCode, invalid

# The largest message that the server takes, in bytes. It answers a larger one
# with RESOURCE_EXHAUSTED, and would do so every time.
MAX_REQUEST_BYTES = 4 << 20

# The same for the metadata of a call, including gRPC's own.
MAX_METADATA_BYTES = 8 << 10

# In seconds, as in recurve-client: gRPC would treat much more as no time at all.
MAX_TIMEOUT = 1e9

_RETRYABLE = frozenset({StatusCode.UNAVAILABLE, StatusCode.RESOURCE_EXHAUSTED})


def is_number(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


@dataclass(frozen=True)
class RetryPolicy:
    """Exponential backoff with full jitter, on UNAVAILABLE and RESOURCE_EXHAUSTED.

    Before try n + 1 (n from 1) the client waits a random time, uniform from 0 to
    min(max_backoff, initial_backoff · multiplier^(n-1)) seconds. If the server
    sent a delay, that comes on top: the client never tries earlier than asked.
    A wait that would outlast the timeout of the call is not begun; the last error
    is raised at once.

    Attributes:
      max_attempts: tries in all, at least 1. 1: no retries.
      initial_backoff, max_backoff: seconds, at least 0.
      multiplier: at least 1.
      None of them above 1e9.

    Raises RecurveError (INVALID_ARGUMENT, field "retry.…") for other values.
    """

    max_attempts: int = 6
    initial_backoff: float = 0.2
    max_backoff: float = 10.0
    multiplier: float = 2.0

    def __post_init__(self) -> None:
        minima = {"max_attempts": 1, "initial_backoff": 0, "max_backoff": 0, "multiplier": 1}
        for name, least in minima.items():
            value = getattr(self, name)
            if not (is_number(value) and least <= value <= MAX_TIMEOUT):
                raise invalid(
                    f"retry.{name}", f"is {value!r}; expected {least} to {MAX_TIMEOUT:g}"
                )

    def longest_backoff(self, failures: int) -> float:
        """Upper end of the random wait after `failures` failures (from 1), in seconds."""
        # Bounded, since a float to a large power overflows.
        power = min(self.multiplier ** min(failures - 1, 64), 1e12)
        return min(self.max_backoff, self.initial_backoff * power)


class Attempts:
    """The tries of one logical call, and the time it has left.

    Thread safety: none; a call is driven by one thread or task.
    """

    def __init__(
        self,
        policy: RetryPolicy,
        timeout: float | None,
        request_bytes: int = 0,
        metadata_bytes: int = 0,
        uniform: Callable[[float, float], float] = random.uniform,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not isinstance(policy, RetryPolicy):
            raise invalid("retry", f"is {policy!r}; expected a RetryPolicy")
        if timeout is not None and not (is_number(timeout) and 0 < timeout <= MAX_TIMEOUT):
            raise invalid(
                "timeout",
                f"is {timeout!r}; expected seconds above 0 and at most {MAX_TIMEOUT:g}, or None",
            )
        self._policy = policy
        self._oversized = (
            request_bytes > MAX_REQUEST_BYTES or metadata_bytes > MAX_METADATA_BYTES
        )
        self._uniform = uniform
        self._clock = clock
        self._deadline = None if timeout is None else clock() + timeout
        self._failures = 0

    def remaining(self) -> float | None:
        """Seconds left for the next try, not below 0; None: no limit."""
        if self._deadline is None:
            return None
        return max(0.0, self._deadline - self._clock())

    def delay_after(self, error: RecurveError) -> float | None:
        """Seconds to wait before the next try; None: there must be none."""
        self._failures += 1
        asked = error.retry_after
        # A full queue or a quota says when to try again, whatever the size.
        too_large = (
            self._oversized and error.code == StatusCode.RESOURCE_EXHAUSTED and asked is None
        )
        if (
            error.code not in _RETRYABLE
            or self._failures >= self._policy.max_attempts
            or (asked is not None and asked < 0)
            or too_large
        ):
            return None
        delay = (asked or 0.0) + self._uniform(0.0, self._policy.longest_backoff(self._failures))
        left = self.remaining()
        return None if left is not None and delay >= left else delay
