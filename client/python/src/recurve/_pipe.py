"""Hands requests to the thread in which gRPC sends them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Pipe(Iterator[T], Generic[T]):
    """An iterator over what another thread puts in.

    Args:
      limit: items that wait at most; None: no limit.

    Thread safety: all methods may be called from any thread.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit
        self._items: deque[T] = deque()
        self._closed = False
        # With a lock that its own thread may take again: a destructor may call `stop`
        # at any point.
        self._changed = threading.Condition(threading.RLock())

    def put(self, item: T) -> bool:
        """Waits for room. False: the pipe is closed, and the item is dropped."""
        with self._changed:
            while (
                not self._closed and self._limit is not None and len(self._items) >= self._limit
            ):
                self._changed.wait()
            if self._closed:
                return False
            self._items.append(item)
            self._changed.notify_all()
            return True

    def close(self) -> None:
        """The iteration ends after what was put in."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def stop(self) -> None:
        """The iteration ends now."""
        with self._changed:
            self._items.clear()
            self.close()

    def __next__(self) -> T:
        with self._changed:
            while not self._items:
                if self._closed:
                    raise StopIteration
                self._changed.wait()
            item = self._items.popleft()
            self._changed.notify_all()
            return item
