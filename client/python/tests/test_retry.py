"""Retries, against a server that fails as it is told to."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from fake import FakeServer, Try, text_of

from recurve import AsyncClient, Client, Generation, RecurveError, RetryPolicy, StatusCode
from recurve._retry import MAX_REQUEST_BYTES, Attempts

BUSY = StatusCode.RESOURCE_EXHAUSTED
GONE = StatusCode.UNAVAILABLE
QUICK = RetryPolicy(max_attempts=4, initial_backoff=0.001)
SLOW = RetryPolicy(initial_backoff=60, max_backoff=60)


def run(
    kind: str, server: FakeServer, resume: bool = False, metadata: dict[str, str] | None = None
) -> Generation:
    """The same generation through either client."""
    if kind == "sync":
        with Client(server.address, retry=QUICK, timeout=60, metadata=metadata) as client:
            return client.generate([1], resume=resume).result()

    async def main() -> Generation:
        async with AsyncClient(
            server.address, retry=QUICK, timeout=60, metadata=metadata
        ) as client:
            return await client.generate([1], resume=resume).result()

    return asyncio.run(main())


both = pytest.mark.parametrize("kind", ["sync", "async"])


@both
@pytest.mark.parametrize("code", [BUSY, GONE])
def test_retries_until_it_works(kind: str, code: StatusCode) -> None:
    failing = Try(code=code)
    with FakeServer([failing, failing, failing, Try(tokens=5)]) as server:
        result = run(kind, server)
        assert result.token_ids == (0, 1, 2, 3, 4)
        assert result.text == text_of(5)
        assert len(server.requests) == 4


@both
def test_gives_up_after_max_attempts(kind: str) -> None:
    with FakeServer([Try(code=GONE)]) as server:
        with pytest.raises(RecurveError) as error:
            run(kind, server)
        assert error.value.code == GONE
        assert error.value.message == "as the script says (4)"
        assert len(server.requests) == 4


@both
@pytest.mark.parametrize("code", [StatusCode.INVALID_ARGUMENT, StatusCode.INTERNAL])
def test_other_codes_are_final(kind: str, code: StatusCode) -> None:
    with FakeServer([Try(code=code), Try(tokens=1)]) as server:
        with pytest.raises(RecurveError) as error:
            run(kind, server)
        assert error.value.code == code
        assert len(server.requests) == 1


@both
def test_waits_as_long_as_the_server_asks(kind: str) -> None:
    with FakeServer([Try(code=BUSY, pushback="400"), Try(tokens=1)]) as server:
        begin = time.monotonic()
        run(kind, server)
        assert time.monotonic() - begin >= 0.4
        assert len(server.requests) == 2


@both
@pytest.mark.parametrize("pushback", ["-1", "soon", ""])
def test_the_server_can_forbid_retries(kind: str, pushback: str) -> None:
    with FakeServer([Try(code=BUSY, pushback=pushback), Try(tokens=1)]) as server:
        with pytest.raises(RecurveError) as error:
            run(kind, server)
        assert error.value.retry_after == -1
        assert len(server.requests) == 1


@both
def test_no_retry_after_tokens(kind: str) -> None:
    with FakeServer([Try(tokens=3, code=GONE), Try(tokens=5)]) as server:
        with pytest.raises(RecurveError) as error:
            run(kind, server)
        assert error.value.code == GONE
        assert len(server.requests) == 1


@both
def test_resume_delivers_each_token_once(kind: str) -> None:
    tries = [Try(tokens=3, code=GONE), Try(tokens=2, code=GONE), Try(tokens=7)]
    with FakeServer(tries) as server:
        result = run(kind, server, resume=True)
        assert result.token_ids == tuple(range(7))
        assert result.text == text_of(7)
        # The second and third try ask for the seed that the first one got.
        assert [r.sampling.HasField("seed") for r in server.requests] == [False, True, True]
        assert result.seed == server.requests[2].sampling.seed == 41


@both
def test_resume_after_a_whole_answer(kind: str) -> None:
    tries = [Try(tokens=3, code=GONE, finish=True), Try(tokens=3)]
    with FakeServer(tries) as server:
        result = run(kind, server, resume=True)
        assert result.token_ids == (0, 1, 2)
        assert result.text == text_of(3)
        assert len(server.requests) == 2


@both
def test_resume_refuses_another_continuation(kind: str) -> None:
    with FakeServer([Try(tokens=3, code=GONE), Try(tokens=7, change=1)]) as server:
        with pytest.raises(RecurveError) as error:
            run(kind, server, resume=True)
        assert error.value.code == StatusCode.DATA_LOSS


@both
def test_resume_refuses_a_shorter_continuation(kind: str) -> None:
    with FakeServer([Try(tokens=3, code=GONE), Try(tokens=2)]) as server:
        with pytest.raises(RecurveError) as error:
            run(kind, server, resume=True)
        assert error.value.code == StatusCode.DATA_LOSS


@both
def test_miscounted_streams_are_refused(kind: str) -> None:
    with FakeServer([Try(tokens=3, claim=4)]) as server:
        with pytest.raises(RecurveError) as error:
            run(kind, server)
        assert error.value.code == StatusCode.DATA_LOSS


@both
def test_a_wait_beyond_the_timeout_is_not_begun(kind: str) -> None:
    with FakeServer([Try(code=BUSY, pushback="90000")]) as server:
        begin = time.monotonic()
        with pytest.raises(RecurveError) as error:
            run(kind, server)
        assert error.value.code == BUSY
        assert time.monotonic() - begin < 30


@both
def test_no_server_is_unavailable(kind: str) -> None:
    with FakeServer([Try()]) as server:
        pass
    with pytest.raises(RecurveError) as error:
        run(kind, server)
    assert error.value.code == GONE


def test_unary_calls_are_retried() -> None:
    async def main(address: str) -> str:
        async with AsyncClient(address, retry=QUICK) as client:
            return (await client.model_info()).name

    with FakeServer([Try(code=GONE), Try(), Try(code=GONE), Try()]) as server:
        with Client(server.address, retry=QUICK) as client:
            assert client.model_info().name == "fake"
        assert len(server.requests) == 2
        assert asyncio.run(main(server.address)) == "fake"
        assert len(server.requests) == 4


def test_cancel_ends_the_wait() -> None:
    with FakeServer([Try(code=BUSY, pushback="60000")]) as server:
        with Client(server.address, retry=SLOW) as client:
            stream = client.generate([1])
            stream.request_id()  # the first try has been answered
            threading.Timer(0.1, stream.cancel).start()
            begin = time.monotonic()
            with pytest.raises(RecurveError) as error:
                stream.result()
            assert error.value.code == StatusCode.CANCELLED
            assert time.monotonic() - begin < 30


def test_async_cancel_ends_the_wait() -> None:
    async def main(address: str) -> None:
        async with AsyncClient(address, retry=SLOW) as client:
            stream = client.generate([1])
            asyncio.get_running_loop().call_later(0.1, stream.cancel)
            with pytest.raises(RecurveError) as error:
                await asyncio.wait_for(stream.result(), 30)
            assert error.value.code == StatusCode.CANCELLED

    with FakeServer([Try(code=BUSY, pushback="60000")]) as server:
        asyncio.run(main(server.address))


def test_closing_the_client_ends_the_wait() -> None:
    with FakeServer([Try(code=BUSY, pushback="60000")]) as server:
        client = Client(server.address, retry=SLOW)
        stream = client.generate([1])
        stream.request_id()  # the first try has been answered
        threading.Timer(0.1, client.close).start()
        begin = time.monotonic()
        with pytest.raises(RecurveError) as error:
            stream.result()
        assert error.value.code == StatusCode.CANCELLED
        assert time.monotonic() - begin < 30


def test_async_closing_the_client_ends_the_wait() -> None:
    async def main(address: str) -> None:
        client = AsyncClient(address, retry=SLOW)
        stream = client.generate([1])
        waiting = asyncio.create_task(stream.result())
        await asyncio.sleep(0.5)
        await client.close()
        with pytest.raises(RecurveError) as error:
            await asyncio.wait_for(waiting, 30)
        assert error.value.code == StatusCode.CANCELLED

    with FakeServer([Try(code=BUSY, pushback="60000")]) as server:
        asyncio.run(main(server.address))


def test_async_reading_after_a_cancelled_read() -> None:
    async def main(address: str) -> None:
        async with AsyncClient(address, retry=SLOW) as client:
            stream = client.generate([1])
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(stream), 0.5)
            with pytest.raises(RecurveError) as error:
                await anext(stream)
            assert error.value.code == StatusCode.CANCELLED

    with FakeServer([Try(hang=True)]) as server:
        asyncio.run(main(server.address))


def test_full_jitter() -> None:
    bounds: list[tuple[float, float]] = []

    def uniform(low: float, high: float) -> float:
        bounds.append((low, high))
        return high

    policy = RetryPolicy(max_attempts=6, initial_backoff=0.5, max_backoff=3)
    attempts = Attempts(policy, None, uniform=uniform)
    error = RecurveError(GONE, "")
    assert [attempts.delay_after(error) for _ in range(6)] == [0.5, 1, 2, 3, 3, None]
    assert bounds == [(0, 0.5), (0, 1), (0, 2), (0, 3), (0, 3)]
    asked = RecurveError(BUSY, "", retry_after=1.5)
    assert Attempts(policy, None, uniform=uniform).delay_after(asked) == 2


def test_oversized_requests_are_not_retried() -> None:
    def delay(request_bytes: int, error: RecurveError) -> float | None:
        return Attempts(QUICK, None, request_bytes).delay_after(error)

    assert delay(MAX_REQUEST_BYTES, RecurveError(BUSY, "")) is not None
    assert delay(MAX_REQUEST_BYTES + 1, RecurveError(BUSY, "")) is None
    assert delay(MAX_REQUEST_BYTES + 1, RecurveError(GONE, "")) is not None
    # A queue or a quota says when there will be a place.
    assert delay(MAX_REQUEST_BYTES + 1, RecurveError(BUSY, "", retry_after=1)) is not None


@both
@pytest.mark.parametrize(
    ("length", "pushback", "tries"), [(8000, None, 1), (8000, "1", 4), (7000, None, 4)]
)
def test_oversized_metadata_are_not_retried(
    kind: str, length: int, pushback: str | None, tries: int
) -> None:
    with FakeServer([Try(code=BUSY, pushback=pushback)]) as server:
        with pytest.raises(RecurveError) as error:
            run(kind, server, metadata={"x-large": "v" * length})
        assert error.value.code == BUSY
        assert len(server.requests) == tries


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_attempts", 0), ("max_attempts", "4"), ("initial_backoff", -1),
     ("max_attempts", 10**400),
     ("max_backoff", float("nan")), ("max_backoff", float("inf")), ("multiplier", 0.5)],
)  # fmt: skip
def test_policies_are_checked(name: str, value: object) -> None:
    with pytest.raises(RecurveError) as error:
        RetryPolicy(**{name: value})  # type: ignore[arg-type]
    assert error.value.field == f"retry.{name}"
