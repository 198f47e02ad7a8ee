"""The asyncio client against the real server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from conftest import Server, wait_until_idle

from recurve import AsyncClient, Client, Generation, Health, Params, RecurveError, StatusCode

PROMPT = "def add(a, b):"
LONG = Params(max_new_tokens=8000, ignore_eos=True)


def test_streams_and_info(address: str, client: Client) -> None:
    async def main() -> Generation:
        async with AsyncClient(address, timeout=120) as aclient:
            assert await aclient.model_info() == client.model_info()
            assert (await aclient.server_info()).max_num_seqs == 32
            assert (await aclient.load()).state_slots_total == 32
            assert await aclient.health() == Health.SERVING
            stream = aclient.generate(PROMPT, max_new_tokens=24, logprobs=2)
            pieces = [piece async for piece in stream]
            result = await stream.result()
            assert "".join(p.text for p in pieces) == result.text
            assert tuple(i for p in pieces for i in p.ids) == result.token_ids
            return result

    expected = client.generate(PROMPT, max_new_tokens=24, logprobs=2).result()
    result = asyncio.run(main())
    assert (result.text, result.logprobs) == (expected.text, expected.logprobs)


def test_32_streams_equal_solo_runs(address: str, client: Client) -> None:
    jobs = [
        ([1 + (7 * n + i) % 250 for i in range(1 + 13 * n)],
         Params(max_new_tokens=64 + n, ignore_eos=True, temperature=n % 3 * 0.5, seed=n))
        for n in range(32)
    ]  # fmt: skip

    async def run(aclient: AsyncClient, barrier: asyncio.Barrier, n: int) -> Generation:
        prompt, params = jobs[n]
        stream = aclient.generate(prompt, **params)
        await anext(stream)
        await barrier.wait()  # all are open at a time
        return await stream.result()

    async def main() -> list[Generation]:
        barrier = asyncio.Barrier(len(jobs))
        async with AsyncClient(address, timeout=300) as aclient:
            return await asyncio.gather(*(run(aclient, barrier, n) for n in range(len(jobs))))

    together = asyncio.run(main())
    wait_until_idle(client)
    for (prompt, params), result in zip(jobs, together, strict=True):
        solo = client.generate(prompt, **params).result()
        assert (result.token_ids, result.text) == (solo.token_ids, solo.text)


def test_cancel(address: str, client: Client) -> None:
    async def main() -> None:
        async with AsyncClient(address) as aclient:
            stream = aclient.generate(PROMPT, **LONG)
            await anext(stream)
            stream.cancel()
            for _ in range(2):
                with pytest.raises(RecurveError) as error:
                    await stream.result()
                assert error.value.code == StatusCode.CANCELLED

    asyncio.run(main())
    wait_until_idle(client)


def test_cancel_while_another_task_waits(start_server: Callable[..., Server]) -> None:
    async def main(address: str) -> None:
        async with AsyncClient(address) as aclient:
            running = aclient.generate(PROMPT, **LONG)
            await anext(running)
            waiting = aclient.generate(PROMPT, **LONG)  # in the queue: there is nothing to read
            assert await waiting.request_id() is not None
            task = asyncio.create_task(waiting.result())
            asyncio.get_running_loop().call_later(0.05, waiting.cancel)
            with pytest.raises(RecurveError) as error:
                await task
            assert error.value.code == StatusCode.CANCELLED
            running.cancel()

    asyncio.run(main(start_server("--max-num-seqs", "1").address))


def test_cancelling_the_task_ends_the_call(address: str, client: Client) -> None:
    async def main() -> None:
        async with AsyncClient(address) as aclient:
            stream = aclient.generate(PROMPT, **LONG)
            await anext(stream)
            task = asyncio.create_task(stream.result())
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            # While the connection is still open.
            await asyncio.to_thread(wait_until_idle, client)

    asyncio.run(main())


def test_leaving_the_block_ends_the_call(address: str, client: Client) -> None:
    async def main() -> None:
        async with AsyncClient(address) as aclient:
            async with aclient.generate(PROMPT, **LONG) as stream:
                await anext(stream)
            await asyncio.to_thread(wait_until_idle, client)
            async with aclient.generate(PROMPT, max_new_tokens=5) as stream:
                pieces = [piece async for piece in stream]
            assert (await stream.result()).text == "".join(p.text for p in pieces)

    asyncio.run(main())


def test_abort(address: str) -> None:
    async def main() -> None:
        async with AsyncClient(address) as aclient:
            stream = aclient.generate(PROMPT, **LONG)
            request_id = await stream.request_id()
            assert request_id is not None
            await aclient.abort(request_id)
            with pytest.raises(RecurveError) as error:
                await stream.result()
            assert error.value.code == StatusCode.CANCELLED

    asyncio.run(main())


def test_errors(address: str) -> None:
    async def main() -> None:
        async with AsyncClient(address) as aclient:
            with pytest.raises(RecurveError) as error:
                await aclient.generate(PROMPT, top_p=2).result()
            assert error.value.code == StatusCode.INVALID_ARGUMENT
            assert error.value.field == "sampling.top_p"
            stream = aclient.generate([999])
            assert await stream.request_id() is None
            with pytest.raises(RecurveError) as error:
                await stream.result()
            assert error.value.field == "prompt_ids[0]"
            with pytest.raises(RecurveError) as error:
                await aclient.generate(PROMPT, timeout=0.05, **LONG).result()
            assert error.value.code == StatusCode.DEADLINE_EXCEEDED
            with pytest.raises(RecurveError) as error:
                await aclient.health(5)  # type: ignore[arg-type]
            assert error.value.field == "service"
            with pytest.raises(RecurveError) as error:
                await aclient.abort("\ud800")
            assert error.value.field == "request_id"

    asyncio.run(main())
