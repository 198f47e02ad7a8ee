"""Sequences of the asyncio client against the real server."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable

import pytest
from conftest import Server, wait_until_idle

from recurve import AsyncClient, Client, CommandResult, RecurveError, StatusCode

PROMPT = "def add(a, b):"
MORE = "\n    # Adds.\n"


async def raises(awaitable: Awaitable[object]) -> RecurveError:
    with pytest.raises(RecurveError) as error:
        await awaitable
    return error.value


def test_equals_the_blocking_client(states_client: Client, states_address: str) -> None:
    def blocking() -> list[CommandResult]:
        with states_client.sequence(PROMPT, logprobs=1) as sequence:
            return [sequence.append(MORE, keep=True), sequence.generate(8, logits="next"),
                    sequence.stream(8).result(), sequence.append([5, 6], logits="all")]  # fmt: skip

    async def main() -> list[CommandResult]:
        async with AsyncClient(states_address, timeout=120) as client:
            async with client.sequence(PROMPT, logprobs=1) as sequence:
                assert (sequence.length, sequence.seed) == (0, None)
                assert await sequence.request_id() is None
                results = [await sequence.append(MORE, keep=True)]
                assert await sequence.request_id() is not None
                results.append(await sequence.generate(8, logits="next"))
                stream = sequence.stream(8)
                pieces = [piece async for piece in stream]
                results.append(await stream.result())
                assert "".join(piece.text for piece in pieces) == results[2].text
                results.append(await sequence.append([5, 6], logits="all"))
                # Back, and the same again.
                sequence.rollback(sequence.kept[0])
                assert sequence.length == results[0].length
                assert await sequence.generate(8, logits="next") == results[1]
                return results

    assert asyncio.run(main()) == blocking()
    wait_until_idle(states_client)


def test_forks_and_snapshots(states_client: Client, states_address: str) -> None:
    async def main() -> None:
        async with AsyncClient(states_address, timeout=120) as client:
            async with client.sequence(PROMPT) as parent:
                children = await parent.fork(3)
                assert len((await client.states.list()).states) == 3
                kept = (await parent.generate(4, keep=True)).length
                expected = await parent.generate(16)
                for wrong in (kept + 1, kept - 1):
                    error = await raises(parent.snapshot(at=wrong))
                    assert error.code == StatusCode.OUT_OF_RANGE
                    assert f"nearest point kept is {kept}" in error.message
                    with pytest.raises(RecurveError, match=f"nearest point kept is {kept}"):
                        parent.rollback(wrong)
                info = await parent.snapshot(at=kept, name="here")
                taken = await raises(parent.snapshot(name="here"))
                assert taken.code == StatusCode.RESOURCE_EXHAUSTED
                # The children at a time.
                results = await asyncio.gather(*(child.generate(20) for child in children))
                assert {result.token_ids[4:] for result in results} == {expected.token_ids}
                for child in children:
                    await child.close()
                assert [s.id for s in (await client.states.list()).states] == [info.id]
                result = await client.generate(from_state="here", max_new_tokens=16).result()
                assert result.token_ids == expected.token_ids
                parent.rollback(kept)
                drawn = await parent.fork(4, temperature=1.0, seed=7)
                texts = await asyncio.gather(*(child.generate(24) for child in drawn))
                assert len({text.token_ids for text in texts}) == 4
                unused = await parent.fork(2)
                for child in [*drawn, *unused]:
                    async with child:
                        pass
                assert len((await client.states.list()).states) == 1
                error = await raises(parent.fork(17))
                assert (error.code, error.field) == (StatusCode.INVALID_ARGUMENT, "count")
            async with client.sequence(from_state=info) as sequence:
                assert (await sequence.generate(16)).token_ids == expected.token_ids
            for unknown in (
                client.sequence(from_state="none").generate(1),
                client.generate(from_state="none").result(),
                client.states.get("none"),
            ):
                assert (await raises(unknown)).code == StatusCode.NOT_FOUND

    asyncio.run(main())
    wait_until_idle(states_client)


def test_text_that_is_held_back(states_client: Client, states_address: str) -> None:
    whole = states_client.generate(PROMPT, max_new_tokens=24).result().text

    async def main() -> None:
        async with AsyncClient(states_address, timeout=120) as client:
            sequence = client.sequence(PROMPT, stop_strings=[whole[-2:] + "~"])
            assert (await sequence.generate(24)).text == whole[:-2]
            assert await sequence.close() == whole[-2:]
            assert await sequence.close() == ""
            error = await raises(sequence.generate(1))
            assert error.code == StatusCode.FAILED_PRECONDITION

    asyncio.run(main())


def test_errors_end_the_sequence(address: str, client: Client) -> None:
    async def main() -> None:
        async with AsyncClient(address, timeout=120) as aclient:
            async with aclient.sequence(PROMPT) as sequence:
                with pytest.raises(RecurveError) as wrong:
                    sequence.stream(-1)
                assert wrong.value.field == "generate"
                await sequence.generate(1)
                stream = sequence.stream(4)
                busy = await raises(sequence.generate(1))
                assert busy.code == StatusCode.FAILED_PRECONDITION
                await stream.result()
                error = await raises(sequence.append([999]))
                assert error.field == "append_ids[0]"
                assert await raises(sequence.append([5])) is error
            timed = aclient.sequence(PROMPT, timeout=0.2, ignore_eos=True)
            error = await raises(timed.generate(8000))
            assert error.code == StatusCode.DEADLINE_EXCEEDED

    asyncio.run(main())
    wait_until_idle(client)


def test_cancel(address: str, client: Client) -> None:
    async def main() -> None:
        async with AsyncClient(address, timeout=120) as aclient:
            sequence = aclient.sequence(PROMPT, ignore_eos=True)
            stream = sequence.stream(8000)
            await anext(stream)
            sequence.cancel()
            assert (await raises(stream.result())).code == StatusCode.CANCELLED
            assert (await raises(sequence.generate(1))).code == StatusCode.CANCELLED
            # The task that waits.
            sequence = aclient.sequence(PROMPT, ignore_eos=True)
            stream = sequence.stream(8000)
            await anext(stream)
            task = asyncio.create_task(stream.result())
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await raises(sequence.generate(1))).code == StatusCode.CANCELLED
            # The block is left in the middle.
            async with aclient.sequence(PROMPT, ignore_eos=True) as sequence:
                async for _ in sequence.stream(8000):
                    break
            # It is dropped.
            sequence = aclient.sequence(PROMPT)
            await sequence.generate(1)
            del sequence, stream, task
            gc.collect()
            await asyncio.to_thread(wait_until_idle, client)
            unused = aclient.sequence(PROMPT)
            begun = aclient.sequence(PROMPT)
            await begun.generate(1)
        for closed in (unused, begun):
            assert (await raises(closed.generate(1))).code == StatusCode.CANCELLED
        error = await raises_at_once(lambda: aclient.sequence(PROMPT).stream(1))
        assert error.code == StatusCode.FAILED_PRECONDITION

    async def raises_at_once(call: Callable[[], object]) -> RecurveError:
        with pytest.raises(RecurveError) as error:
            call()
        return error.value

    asyncio.run(main())
    wait_until_idle(client)


def test_a_crash_loses_the_sequence(start_server: Callable[..., Server]) -> None:
    async def main(server: Server) -> None:
        async with AsyncClient(server.address, timeout=120) as client:
            async with client.sequence(PROMPT) as sequence:
                await sequence.generate(1)
                server.kill()
                error = await raises(sequence.generate(1))
                assert error.code == StatusCode.UNAVAILABLE
            async with client.sequence(PROMPT) as sequence:
                task = asyncio.create_task(sequence.generate(1))
                await asyncio.to_thread(start_server, port=server.port)
                assert (await task).token_ids  # tried again: it had not begun

    asyncio.run(main(start_server()))


def test_the_server_ends_an_idle_sequence(start_server: Callable[..., Server]) -> None:
    async def main(address: str) -> None:
        async with AsyncClient(address, timeout=120) as client:
            sequence = client.sequence(PROMPT)
            await sequence.generate(1)
            while (await client.load()).open_streams > 0:
                await asyncio.sleep(0.02)
            error = await raises(sequence.generate(1))
            assert error.code == StatusCode.DEADLINE_EXCEEDED
            with Client(address, timeout=120) as blocking:
                with blocking.sequence(PROMPT) as other:
                    other.generate(1)
                    while blocking.load().open_streams > 0:
                        await asyncio.sleep(0.02)
                    with pytest.raises(RecurveError) as ended:
                        other.generate(1)
                    assert ended.value.code == StatusCode.DEADLINE_EXCEEDED

    asyncio.run(main(start_server("--decode-idle-timeout", "0.1").address))
