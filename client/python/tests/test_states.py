"""States of both clients, against the real server and a scripted one."""

from __future__ import annotations

import asyncio
import functools
import stat
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Server
from fake_states import ID, FakeStates

from recurve import AsyncClient, Client, RecurveError, RetryPolicy, StateInfo, StatusCode
from recurve.v1 import inference_pb2 as pb
from recurve.v1 import state_pb2

PROMPT = "def add(a, b):"
FAST = RetryPolicy(initial_backoff=0)


def raises(call: Callable[[], object]) -> RecurveError:
    with pytest.raises(RecurveError) as error:
        call()
    return error.value


def make_state(client: Client, **options: Any) -> tuple[StateInfo, tuple[int, ...]]:
    """A state, and the tokens after it."""
    with client.sequence(PROMPT) as sequence:
        sequence.generate(5)
        return sequence.snapshot(**options), sequence.generate(12).token_ids


def continued(client: Client, state: StateInfo | str) -> tuple[int, ...]:
    return client.generate(from_state=state, max_new_tokens=12).result().token_ids


def test_get_list_pin_release(states_client: Client) -> None:
    states = states_client.states
    first, _ = make_state(states_client, name="first")
    second, expected = make_state(states_client)
    assert states.get("first").id == states.get(first.id).id == states.get(first).id == first.id
    assert len(first.id) == 32 and first.tokens == 15 + 5 and first.seed is None
    assert 0 < first.computed_tokens <= first.tokens
    assert 0 <= states.get(first).age_seconds < 600
    listing = states.list()
    assert [state.id for state in listing.states] == [second.id, first.id]
    assert 0 < listing.bytes <= listing.max_bytes
    pinned = states.pin(second, name="second")
    assert (pinned.pinned, pinned.ttl_seconds, pinned.name) == (True, 0, "second")
    timed = states.pin("second", ttl=30)
    assert (timed.pinned, timed.ttl_seconds, timed.name) == (False, 30, "second")
    assert states.pin(second, pinned=False).pinned is False
    taken = raises(lambda: states.pin(second, name="first"))
    assert taken.code == StatusCode.RESOURCE_EXHAUSTED
    states.release("first")
    assert raises(lambda: states.get(first)).code == StatusCode.NOT_FOUND
    assert continued(states_client, "second") == expected


def test_fork_of_a_state(states_client: Client) -> None:
    states = states_client.states
    base, expected = make_state(states_client)
    children = states.fork(base, 3, seed=5, ttl=40)
    assert len({child.id for child in children} | {base.id}) == 4
    assert len({child.seed for child in children} - {None}) == 3
    assert {child.ttl_seconds for child in children} == {40}
    assert [s.seed for s in states.fork(base.id, 3, seed=5)] == [s.seed for s in children]
    (cut,) = states.fork(base, 1, at=5)
    assert (cut.tokens, cut.parent) == (5, base.id)
    states.release(base)
    for child in children:
        assert continued(states_client, child) == expected
    drawn = {
        states_client.generate(from_state=child, max_new_tokens=24, temperature=1.0).result().text
        for child in children
    }
    assert len(drawn) == 3
    assert raises(lambda: states.fork(children[0], 0)).field == "count"
    assert raises(lambda: states.fork(children[0], 2, seed=-1)).field == "seed"


def test_export_and_import(
    states_client: Client, start_server: Callable[..., Server], tmp_path: Path
) -> None:
    info, expected = make_state(states_client, name="base")
    path = tmp_path / "base.state"
    data = b"".join(states_client.states.export("base"))
    assert states_client.states.export_to(info, path) == len(data) == path.stat().st_size
    assert path.read_bytes() == data
    assert list(tmp_path.iterdir()) == [path]
    server = start_server("--prefix-cache-bytes", "256MiB")
    with Client(server.address, timeout=120) as other:
        by_stream = other.states.import_(states_client.states.export(info), name="copy", ttl=70)
        assert (by_stream.name, by_stream.ttl_seconds) == ("copy", 70)
        assert by_stream.tokens == info.tokens and by_stream.id != info.id
        by_file = other.states.import_from(path, pinned=True)
        assert by_file.pinned
        by_bytes = other.states.import_([data[:1], b"", data[1:]])
        for state in (by_stream, by_file, by_bytes):
            assert continued(other, state) == expected
        before = len(other.states.list().states)
        damaged = bytearray(data)
        damaged[len(data) // 2] ^= 1
        for chunks in ([data[:-1]], [bytes(damaged)], []):
            error = raises(lambda chunks=chunks: other.states.import_(chunks))  # type: ignore[misc]
            assert error.code == StatusCode.DATA_LOSS
        taken = raises(lambda: other.states.import_([data], name="copy"))
        assert taken.code == StatusCode.RESOURCE_EXHAUSTED
        assert len(other.states.list().states) == before


def test_async_states(
    states_client: Client, states_address: str, start_server: Callable[..., Server], tmp_path: Path
) -> None:
    info, expected = make_state(states_client, name="base")
    path = tmp_path / "base.state"

    async def main(other_address: str) -> None:
        async with (
            AsyncClient(states_address, timeout=120) as client,
            AsyncClient(other_address, timeout=120) as other,
        ):
            states = client.states
            assert (await states.get("base")).id == info.id
            assert [s.id for s in (await states.list()).states] == [info.id]
            assert (await states.pin(info, name="new")).pinned
            children = await states.fork("new", 2, seed=5)
            assert len({child.seed for child in children}) == 2
            for child in children:
                await states.release(child)
            with pytest.raises(RecurveError) as error:
                await states.get(children[0])
            assert error.value.code == StatusCode.NOT_FOUND
            size = await states.export_to(info, path)
            data = b"".join([piece async for piece in states.export(info)])
            assert path.read_bytes() == data and size == len(data)
            assert list(tmp_path.iterdir()) == [path]
            for state in (
                await other.states.import_(states.export(info), name="copy", ttl=70),
                await other.states.import_from(path),
                await other.states.import_([data]),
            ):
                result = await other.generate(from_state=state, max_new_tokens=12).result()
                assert result.token_ids == expected
            with pytest.raises(RecurveError) as error:
                await other.states.import_([data[:-1]])
            assert error.value.code == StatusCode.DATA_LOSS

    asyncio.run(main(start_server("--prefix-cache-bytes", "256MiB").address))


# Against the scripted server. Each is done by both clients.


def run(address: str, asynchronous: bool, what: str, *args: Any, **keywords: Any) -> Any:
    """A method of `states`, its iterator read to the end."""
    if not asynchronous:
        with Client(address, timeout=60, retry=FAST) as client:
            result = getattr(client.states, what)(*args, **keywords)
            return list(result) if what == "export" else result

    async def main() -> Any:
        async with AsyncClient(address, timeout=60, retry=FAST) as client:
            result = getattr(client.states, what)(*args, **keywords)
            return [piece async for piece in result] if what == "export" else await result

    return asyncio.run(main())


both = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])


@both
def test_import_sends_options_and_then_pieces(asynchronous: bool) -> None:
    big = bytes(range(256)) * (40 << 10)  # 10 MiB: more than a message takes
    chunks = [b"", b"a", bytearray(b"bc"), memoryview(b"defg")[::2], big]
    with FakeStates() as server:
        info = run(server.address, asynchronous, "import_", iter(chunks), name="n", pinned=True)
        assert (info.id, info.name) == (ID, "n")
        (messages,) = server.imports
    assert messages[0].options == state_pb2.StateOptions(name="n", pinned=True)
    assert all(message.WhichOneof("part") == "data" for message in messages[1:])
    assert b"".join(message.data for message in messages[1:]) == b"abcdf" + big
    assert max(len(message.data) for message in messages) < 4 << 20


@both
def test_a_refused_import_ends_at_once(asynchronous: bool) -> None:
    def endless() -> Iterator[bytes]:
        while True:
            yield b"x" * 100000

    with FakeStates(refuse_after=3) as server:
        error = raises(lambda: run(server.address, asynchronous, "import_", endless()))
        assert error.code == StatusCode.RESOURCE_EXHAUSTED
        assert len(server.imports) == 1  # no other try


@both
def test_an_iterator_that_raises_ends_the_import(asynchronous: bool) -> None:
    class Stop(Exception):
        pass

    # Raise when the server is in the middle of it.
    def broken() -> Iterator[bytes]:
        yield b"x"
        assert server.received.wait(60)
        raise Stop

    async def broken_async() -> AsyncIterator[bytes]:
        yield b"x"
        assert server.received.wait(60)
        raise Stop

    async def main(address: str, chunks: Iterable[bytes] | AsyncIterable[bytes]) -> None:
        async with AsyncClient(address, timeout=60) as client:
            with pytest.raises(Stop):
                await client.states.import_(chunks)
            # While the connection is still open.
            assert await asyncio.to_thread(server.ended.wait, 60)

    with FakeStates() as server:
        if asynchronous:
            asyncio.run(main(server.address, broken()))
            server.received.clear()
            server.ended.clear()
            asyncio.run(main(server.address, broken_async()))
        else:
            with Client(server.address, timeout=60) as client:
                with pytest.raises(Stop):
                    client.states.import_(broken())
                assert server.ended.wait(60)
        # A string, and what is no text at all.
        for bad in ("text", b"bytes", 5, ["text"], [5]):
            call = functools.partial(run, server.address, asynchronous, "import_", bad)
            error = raises(call)
            assert (error.code, error.field) == (StatusCode.INVALID_ARGUMENT, "chunks")


@both
def test_export_is_tried_again_before_its_first_piece(asynchronous: bool) -> None:
    with FakeStates(pieces=[b"a", b"b"], failures=2) as server:
        assert run(server.address, asynchronous, "export", "name") == [b"a", b"b"]
        assert server.exports == 3
    with FakeStates(pieces=[b"a"], code=StatusCode.UNAVAILABLE) as server:
        error = raises(lambda: run(server.address, asynchronous, "export", "name"))
        assert error.code == StatusCode.UNAVAILABLE
        assert server.exports == 1


@both
def test_files(asynchronous: bool, tmp_path: Path) -> None:
    path = tmp_path / "state"
    path.write_bytes(b"old")
    with FakeStates(pieces=[b"ab", b"c"], code=StatusCode.DATA_LOSS) as server:
        error = raises(lambda: run(server.address, asynchronous, "export_to", "name", path))
        assert error.code == StatusCode.DATA_LOSS
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]  # no part of it is left
    with FakeStates(pieces=[b"ab", b"c"]) as server:
        assert run(server.address, asynchronous, "export_to", "name", str(path)) == 3
        assert path.read_bytes() == b"abc"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert list(tmp_path.iterdir()) == [path]
        run(server.address, asynchronous, "import_from", path, ttl=5.0)
        (messages,) = server.imports
        assert messages[0].options.ttl_seconds == 5
        assert [message.data for message in messages[1:]] == [b"abc"]
        missing = tmp_path / "missing" / "state"
        for what in ("export_to", "import_from"):
            arguments = ["name", missing] if what == "export_to" else [missing]
            call = functools.partial(run, server.address, asynchronous, what, *arguments)
            error = raises(call)
            assert (error.code, error.field) == (StatusCode.INVALID_ARGUMENT, "path")


def test_closing_an_export_ends_the_call(states_client: Client) -> None:
    info, _ = make_state(states_client)
    pieces = states_client.states.export(info)
    assert next(pieces)
    pieces.close()
    assert list(pieces) == []


def test_a_client_that_is_closed(tmp_path: Path) -> None:
    client = Client("127.0.0.1:1")
    client.close()

    def all_of(states: Any) -> list[Callable[[], Any]]:
        return [
            lambda: states.get("x"),
            lambda: states.import_([b"x"]),
            lambda: states.export_to("x", tmp_path / "x"),
        ]

    for call in all_of(client.states):
        assert raises(call).code == StatusCode.FAILED_PRECONDITION

    async def main() -> None:
        aclient = AsyncClient("127.0.0.1:1")
        await aclient.close()
        for call in all_of(aclient.states):
            with pytest.raises(RecurveError) as error:
                await call()
            assert error.value.code == StatusCode.FAILED_PRECONDITION

    asyncio.run(main())
    assert list(tmp_path.iterdir()) == []


# Decode of a server that breaks the rules.


def response(**fields: Any) -> pb.DecodeResponse:
    return pb.DecodeResponse(**fields)


RULES = {
    "index": ([response(tokens=pb.Tokens(index=1, ids=[5]))], "0 came before"),
    "count": (
        [response(tokens=pb.Tokens(ids=[5])), response(done=True, usage=pb.Usage())],
        "counts 0 generated tokens, but 1",
    ),
    "end": ([response(tokens=pb.Tokens(ids=[5]))], "ended with OK"),
}


@both
@pytest.mark.parametrize("rule", RULES)
def test_responses_that_do_not_add_up(rule: str, asynchronous: bool) -> None:
    responses, message = RULES[rule]
    with FakeStates(responses=responses) as server:

        async def main() -> None:
            async with AsyncClient(server.address, timeout=60) as client:
                await client.sequence(PROMPT).generate(4)

        def blocking() -> None:
            with Client(server.address, timeout=60) as client:
                client.sequence(PROMPT).generate(4)

        error = raises(lambda: asyncio.run(main()) if asynchronous else blocking())
    assert error.code == StatusCode.DATA_LOSS
    assert message in error.message


@both
def test_only_the_first_command_has_options(asynchronous: bool) -> None:
    done = response(done=True, sequence_tokens=3, usage=pb.Usage())
    with FakeStates(responses=[done] * 3) as server:

        async def main() -> None:
            async with AsyncClient(server.address, timeout=60) as client:
                async with client.sequence([1], from_state="s", seed=9, priority=2) as sequence:
                    await sequence.append([2], keep=True)
                    sequence.rollback(3)
                    await sequence.generate(0, append="x", logits="all")

        def blocking() -> None:
            with Client(server.address, timeout=60) as client:
                with client.sequence([1], from_state="s", seed=9, priority=2) as sequence:
                    sequence.append([2], keep=True)
                    sequence.rollback(3)
                    sequence.generate(0, append="x", logits="all")

        asyncio.run(main()) if asynchronous else blocking()
        assert server.commands == [
            pb.DecodeRequest(
                append_ids=pb.TokenIds(ids=[1]),
                generate=0,
                from_state="s",
                sampling=pb.SamplingParams(seed=9),
                priority=2,
            ),
            pb.DecodeRequest(append_ids=pb.TokenIds(ids=[2]), generate=0, keep=True),
            pb.DecodeRequest(
                append_text="x", generate=0, rollback_to=3, logits=pb.LOGITS_MODE_ALL
            ),
        ]


@both
def test_a_lost_answer_is_not_tried_again(asynchronous: bool) -> None:
    admitted = response(admitted=pb.Admitted(request_id="0" * 16))
    with FakeStates(responses=[admitted], decode_code=StatusCode.UNAVAILABLE) as server:

        async def main() -> None:
            async with AsyncClient(server.address, timeout=60, retry=FAST) as client:
                await client.sequence(PROMPT).generate(4)

        def blocking() -> None:
            with Client(server.address, timeout=60, retry=FAST) as client:
                client.sequence(PROMPT).generate(4)

        error = raises(lambda: asyncio.run(main()) if asynchronous else blocking())
        assert error.code == StatusCode.UNAVAILABLE
        assert len(server.commands) == 1
    with FakeStates(decode_code=StatusCode.UNAVAILABLE) as server:
        error = raises(lambda: asyncio.run(main()) if asynchronous else blocking())
        assert error.code == StatusCode.UNAVAILABLE
        assert len(server.commands) == FAST.max_attempts
