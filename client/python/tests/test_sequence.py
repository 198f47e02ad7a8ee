"""Sequences of the blocking client against the real server."""

from __future__ import annotations

import array
import functools
import gc
import math
import threading
from collections.abc import Callable
from typing import Any

import pytest
from conftest import Server, wait_until_idle

from recurve import (
    Client,
    FinishReason,
    Prompt,
    RecurveError,
    RetryPolicy,
    SequenceParams,
    StatusCode,
)

PROMPT = "def add(a, b):"
MORE = "\n    # Adds.\n"


def raises(call: Callable[[], object]) -> RecurveError:
    with pytest.raises(RecurveError) as error:
        call()
    return error.value


def test_commands_equal_one_generation(states_client: Client) -> None:
    whole = states_client.generate(PROMPT, max_new_tokens=24, logprobs=2).result()
    with states_client.sequence(PROMPT, logprobs=2) as sequence:
        assert (sequence.length, sequence.seed, sequence.request_id()) == (0, None, None)
        first = sequence.generate(9)
        second = sequence.generate(15)
        assert first.token_ids + second.token_ids == whole.token_ids
        assert first.text + second.text + sequence.close() == whole.text
        assert first.logprobs + second.logprobs == whole.logprobs
        assert first.finish_reason == second.finish_reason == FinishReason.LENGTH
        assert (first.usage.prompt_tokens, first.usage.completion_tokens) == (15, 9)
        assert second.usage.completion_tokens == 24
        assert (first.length, second.length, sequence.length) == (15 + 9, 15 + 24, 15 + 24)
        assert sequence.seed is not None
        assert first.logits == second.logits == ()
    wait_until_idle(states_client)


def test_append(states_client: Client) -> None:
    with states_client.sequence() as sequence:
        assert sequence.append(PROMPT).length == 15
        done = sequence.append(list(MORE.encode()))
        assert done.length == 15 + len(MORE)
        assert (done.token_ids, done.text, done.finish_reason) == ((), "", FinishReason.LENGTH)
        by_parts = sequence.generate(8)
    with states_client.sequence(PROMPT + MORE) as sequence:
        assert sequence.generate(8) == by_parts
    with states_client.sequence(PROMPT) as sequence:  # the prompt is a command before
        assert sequence.generate(8, append=MORE) == by_parts
    assert by_parts.token_ids


def test_streams(states_client: Client) -> None:
    with states_client.sequence(PROMPT) as sequence:
        expected = sequence.generate(24)
    with states_client.sequence(PROMPT) as sequence:
        stream = sequence.stream(24)
        pieces = [next(stream)]
        busy = raises(lambda: sequence.generate(1))
        assert busy.code == StatusCode.FAILED_PRECONDITION
        for call in (sequence.snapshot, lambda: sequence.rollback(1)):
            assert raises(call).code == StatusCode.FAILED_PRECONDITION
        pieces += stream
        assert stream.result() == expected
        assert list(stream) == []
        assert tuple(i for p in pieces for i in p.ids) == expected.token_ids
        assert "".join(p.text for p in pieces) == expected.text
        assert [p.index for p in pieces] == [sum(len(q.ids) for q in pieces[:n])
                                             for n in range(len(pieces))]  # fmt: skip


def test_logits(states_client: Client) -> None:
    vocab = states_client.model_info().vocab_size
    with states_client.sequence(PROMPT) as sequence:
        all_rows = sequence.append(PROMPT, logits="all").logits
        assert [row.position for row in all_rows] == list(range(15, 15 + len(PROMPT)))
    with states_client.sequence(PROMPT, logprobs=0) as sequence:
        done = sequence.generate(3, logits="next")
        assert [row.position for row in done.logits] == [14, 15, 16]
        for row, token, entry in zip(done.logits, done.token_ids, done.logprobs, strict=True):
            assert isinstance(row.values, array.array) and row.values.typecode == "f"
            assert len(row.values) == vocab
            assert max(row.values) == row.values[token]  # greedy
            total = math.log(sum(math.exp(v - row.values[token]) for v in row.values))
            assert math.isclose(entry.logprob, -total, abs_tol=1e-4)
        assert [row.position for row in sequence.append([10], logits="next").logits] == [18]
        assert sequence.append([10]).logits == ()


def test_stops(states_client: Client) -> None:
    with states_client.sequence(PROMPT, stop_strings=["add"]) as sequence:
        done = sequence.generate(24)
        assert (done.finish_reason, done.stop_string) == (FinishReason.STOP_STRING, "add")
        assert done.text == "\n        return "
        assert sequence.generate(4).token_ids  # and goes on


def test_text_that_is_held_back(states_client: Client) -> None:
    whole = states_client.generate(PROMPT, max_new_tokens=24).result().text
    params = SequenceParams(stop_strings=[whole[-2:] + "~"])
    with states_client.sequence(PROMPT, **params) as sequence:
        done = sequence.generate(24)
        assert done.text == whole[:-2]
        assert sequence.close() == whole[-2:]
        assert sequence.close() == ""
    with states_client.sequence(**params) as sequence:
        start = sequence.append(PROMPT, keep=True).length
        assert sequence.generate(24).text == whole[:-2]
        sequence.rollback(start)
        assert sequence.close() == ""  # what is forgotten is not held back


def test_rollback(states_client: Client) -> None:
    with states_client.sequence(PROMPT, temperature=1.0, seed=3, logprobs=1) as sequence:
        start = sequence.generate(4, keep=True)
        first = sequence.generate(12, keep=True)
        assert list(sequence.kept) == [start.length, first.length]
        sequence.rollback(start.length)
        assert (sequence.length, list(sequence.kept)) == (start.length, [start.length])
        # The later point is forgotten, though the server does not know it yet.
        for error in (
            raises(lambda: sequence.rollback(first.length)),
            raises(lambda: sequence.snapshot(at=first.length)),
        ):
            assert error.code == StatusCode.OUT_OF_RANGE
            assert f"nearest point kept is {start.length}" in error.message
        again = sequence.generate(12)
        assert again == first
        # Another continuation, and back.
        sequence.rollback(start.length)
        other = sequence.generate(12, append=MORE)
        assert other.length == first.length + len(MORE)
        sequence.rollback(start.length)
        assert sequence.generate(12) == first


def test_rollback_to_a_wrong_point(states_client: Client) -> None:
    with states_client.sequence(PROMPT) as sequence:
        assert "no command has kept" in raises(lambda: sequence.rollback(0)).message
        kept = sequence.generate(4, keep=True).length
        for wrong in (kept - 1, kept + 1, -1, 1 << 70):
            error = raises(lambda wrong=wrong: sequence.rollback(wrong))  # type: ignore[misc]
            assert error.code == StatusCode.OUT_OF_RANGE
            assert f"{wrong}; the nearest point kept is {kept}" in error.message
        error = raises(lambda: sequence.rollback("5"))  # type: ignore[arg-type]
        assert "expected a kept point" in error.message
        assert sequence.generate(4).length == kept + 4  # the sequence is as it was


def test_more_points_than_can_be_kept(states_client: Client) -> None:
    with states_client.sequence(PROMPT) as sequence:
        for n in range(16):
            sequence.append([10 + n], keep=True)
        assert len(sequence.kept) == 16
        error = raises(lambda: sequence.append([9], keep=True))
        assert error.code == StatusCode.RESOURCE_EXHAUSTED
        assert raises(lambda: sequence.append([9])) is error  # the call has ended


def test_a_forks_greedy_continuation_equals_the_parents(states_client: Client) -> None:
    with states_client.sequence(PROMPT) as parent:
        parent.generate(5)
        children = parent.fork(3)
        assert len(states_client.states.list().states) == 3
        expected = parent.generate(20)
        for child in children:
            with child:
                assert child.length == 0
                done = child.generate(20)
                assert (done.token_ids, done.text) == (expected.token_ids, expected.text)
                assert done.length == child.length == parent.length
        assert states_client.states.list().states == ()
    wait_until_idle(states_client)


def test_forks_draw_different_tokens(states_client: Client) -> None:
    def texts(seed: int | None) -> list[tuple[int, ...]]:
        with states_client.sequence(PROMPT, seed=1) as parent:  # which did not begin
            children = parent.fork(4, temperature=1.0, seed=seed)
            results = [child.generate(24).token_ids for child in children]
            assert len({child.seed for child in children}) == 4
            for child in children:
                child.close()
            return results

    first = texts(7)
    assert len(set(first)) == 4
    assert texts(7) == first
    assert texts(8) != first
    assert texts(None) != first


def test_fork_of_a_fork_and_after_a_rollback(states_client: Client) -> None:
    with states_client.sequence(PROMPT) as parent:
        point = parent.generate(4, keep=True).length
        expected = parent.generate(16).token_ids
        parent.append(MORE)
        parent.rollback(point)
        (child,) = parent.fork(1)
        with child:
            begun = child.generate(8)
            (grandchild,) = child.fork(1)
            with grandchild:
                assert begun.token_ids + grandchild.generate(8).token_ids == expected
        assert parent.generate(16).token_ids == expected


def test_a_forks_states_are_released(states_client: Client) -> None:
    def count() -> int:
        return len(states_client.states.list().states)

    with states_client.sequence(PROMPT) as parent:
        first, second, third = parent.fork(3, ttl=100)
        assert {s.ttl_seconds for s in states_client.states.list().states} == {100}
        stream = first.stream(4)
        assert count() == 3
        stream.result()
        assert count() == 2  # with its first command
        second.close()
        assert count() == 1  # or when it is closed before
        with third:
            pass
        assert count() == 0
        closed = raises(lambda: second.generate(1))
        assert closed.code == StatusCode.FAILED_PRECONDITION
        error = raises(lambda: parent.fork(17))
        assert (error.code, error.field) == (StatusCode.INVALID_ARGUMENT, "count")
        error = raises(lambda: parent.fork(2, ttl=0))
        assert error.field == "options.ttl_seconds"
        with pytest.raises(TypeError, match="max_new_tokens"):
            parent.fork(2, max_new_tokens=5)  # type: ignore[call-arg]
        assert count() == 0
        assert parent.generate(1).token_ids  # the parent is as it was


def test_snapshot_and_from_state(states_client: Client) -> None:
    with states_client.sequence(PROMPT) as sequence:
        kept = sequence.generate(5, keep=True).length
        sequence.generate(3)
        info = sequence.snapshot(name="here", ttl=50)
        before = sequence.snapshot(at=kept, pinned=True)
        assert (info.name, info.ttl_seconds, info.pinned) == ("here", 50, False)
        assert (before.name, before.ttl_seconds, before.pinned) == ("", 0, True)
        assert (info.tokens, before.tokens) == (sequence.length, kept)
        expected = sequence.generate(16).token_ids
    by_name = states_client.generate(from_state="here", max_new_tokens=16).result()
    assert by_name.token_ids == expected
    by_id = states_client.generate(from_state=info.id, max_new_tokens=16).result()
    assert by_id.token_ids == expected
    assert by_id.usage.prompt_tokens == info.tokens
    empties: list[Prompt] = ["", []]
    for empty in empties:
        result = states_client.generate(empty, from_state=info, max_new_tokens=16).result()
        assert result.token_ids == expected
    result = states_client.generate(from_state=before, max_new_tokens=19).result()
    assert result.token_ids[3:] == expected
    with states_client.sequence(from_state="here") as sequence:
        assert sequence.generate(16).token_ids == expected
    # With more of a prompt.
    with states_client.sequence(MORE, from_state="here") as sequence:
        with_more = sequence.generate(16)
        assert with_more.length == info.tokens + len(MORE) + 16
    result = states_client.generate(MORE, from_state="here", max_new_tokens=16).result()
    assert result.token_ids == with_more.token_ids


def test_errors_of_snapshots(states_client: Client) -> None:
    with states_client.sequence() as sequence:
        for call in (sequence.snapshot, lambda: sequence.fork(2)):
            assert raises(call).code == StatusCode.FAILED_PRECONDITION  # nothing to take
        kept = sequence.append(PROMPT, keep=True).length
        sequence.generate(8)
        wrong = raises(lambda: sequence.snapshot(at=kept + 1))
        assert wrong.code == StatusCode.OUT_OF_RANGE
        assert f"nearest point kept is {kept}" in wrong.message
        info = sequence.snapshot(name="taken")
        taken = raises(lambda: sequence.snapshot(name="taken"))
        assert taken.code == StatusCode.RESOURCE_EXHAUSTED
        assert info.id in taken.message
        bad: list[tuple[dict[str, Any], str]] = [
            ({"name": "no spaces"}, "options.name"), ({"name": 5}, "options.name"),
            ({"ttl": 0}, "options.ttl_seconds"), ({"ttl": "long"}, "options.ttl_seconds"),
            ({"ttl": 1, "pinned": True}, "options.ttl_seconds"),
            ({"pinned": "yes"}, "options.pinned"), ({"at": -1}, "at"), ({"at": 1.5}, "at"),
        ]  # fmt: skip
        for arguments, field in bad:
            error = raises(functools.partial(sequence.snapshot, **arguments))
            assert error.code == StatusCode.INVALID_ARGUMENT, arguments
            assert error.field == field or error.message.startswith("options"), arguments
        assert sequence.generate(2).token_ids  # the sequence is as it was


def test_unknown_states(states_client: Client) -> None:
    states = states_client.states
    calls: list[Callable[[], object]] = [
        lambda: states_client.generate(from_state="none", max_new_tokens=1).result(),
        lambda: states_client.sequence(from_state="none").generate(1),
        lambda: states.get("none"),
        lambda: states.pin("none"),
        lambda: states.release("none"),
        lambda: states.fork("none", 2),
        lambda: list(states.export("none")),
    ]
    for call in calls:
        error = raises(call)
        assert error.code == StatusCode.NOT_FOUND
        assert "'none'" in error.message
    for bad in ("", 5):
        for call in (
            lambda bad=bad: states_client.generate(PROMPT, from_state=bad),
            lambda bad=bad: states_client.sequence(from_state=bad),
        ):
            assert raises(call).field == "from_state"
        assert raises(lambda bad=bad: states.get(bad)).field == "state"  # type: ignore[misc]


def test_a_server_without_states(start_server: Callable[..., Server]) -> None:
    server = start_server("--prefix-cache-bytes", "0")
    with Client(server.address, timeout=120) as client, client.sequence(PROMPT) as sequence:
        expected = sequence.generate(6, keep=True)
        sequence.append(MORE)
        sequence.rollback(15 + 6)
        assert sequence.length == expected.length  # kept without memory for it
        for call in (sequence.snapshot, lambda: sequence.fork(2)):
            error = raises(call)
            assert error.code == StatusCode.FAILED_PRECONDITION
            assert "--prefix-cache-bytes" in error.message
        assert sequence.generate(2).token_ids


BAD: list[tuple[dict[str, Any], str]] = [
    ({"append": b"bytes"}, "append_ids"),
    ({"append": "\ud800"}, "append_text"),
    ({"append": [1, -1]}, "append_ids[1]"),
    ({"n": -1}, "generate"),
    ({"n": "5"}, "generate"),
    ({"logits": "some"}, "logits"),
    ({"logits": None}, "logits"),
    ({"keep": "yes"}, "keep"),
]


@pytest.mark.parametrize(("bad", "field"), BAD, ids=ascii)
def test_wrong_types_change_nothing(client: Client, bad: dict[str, Any], field: str) -> None:
    with client.sequence(PROMPT) as sequence:
        for _ in range(2):  # before the first command, and before the second
            error = raises(lambda: sequence.stream(**{"n": 4, **bad}))
            assert (error.code, error.field) == (StatusCode.INVALID_ARGUMENT, field)
            assert sequence.generate(4).token_ids


def test_arguments_are_checked_at_once(client: Client) -> None:
    bad: list[tuple[dict[str, Any], str]] = [
        ({"temperature": "hot"}, "sampling.temperature"),
        ({"timeout": -1}, "timeout"),
        ({"prompt": b"bytes"}, "append_ids"),
    ]
    for arguments, field in bad:
        assert raises(functools.partial(client.sequence, **arguments)).field == field
    gc.collect()  # what the constructor has left runs its destructor
    for name in ("max_new_tokens", "max_tokens"):
        with pytest.raises(TypeError, match=name):
            client.sequence(PROMPT, **{name: 5})  # type: ignore[arg-type]


def test_a_refused_command_ends_the_sequence(client: Client) -> None:
    with client.sequence([1, 999]) as sequence:
        error = raises(lambda: sequence.generate(1))
        assert (error.code, error.field) == (StatusCode.INVALID_ARGUMENT, "append_ids[1]")
        assert raises(lambda: sequence.generate(1)) is error
    with client.sequence(PROMPT) as sequence:
        sequence.generate(1)
        error = raises(lambda: sequence.append([]))
        assert error.code == StatusCode.INVALID_ARGUMENT
        assert raises(lambda: sequence.rollback(1)) is error
    wait_until_idle(client)


def test_cancel_and_abort(client: Client) -> None:
    sequence = client.sequence(PROMPT, ignore_eos=True)
    stream = sequence.stream(8000)
    next(stream)
    thread = threading.Thread(target=sequence.cancel)
    thread.start()
    assert raises(stream.result).code == StatusCode.CANCELLED
    thread.join()
    assert raises(lambda: sequence.generate(1)).code == StatusCode.CANCELLED
    assert sequence.close() == ""
    sequence = client.sequence(PROMPT, ignore_eos=True)
    stream = sequence.stream(8000)
    request_id = sequence.request_id()
    assert request_id is not None
    client.abort(request_id)
    assert raises(stream.result).code == StatusCode.CANCELLED
    unused = client.sequence(PROMPT)
    unused.cancel()
    assert raises(lambda: unused.generate(1)).code == StatusCode.CANCELLED
    wait_until_idle(client)


def test_leaving_the_block_in_the_middle(client: Client) -> None:
    with client.sequence(PROMPT, ignore_eos=True) as sequence:
        for _ in sequence.stream(8000):
            break
    wait_until_idle(client)
    with pytest.raises(KeyError):
        with client.sequence(PROMPT) as sequence:
            sequence.generate(1)
            raise KeyError
    wait_until_idle(client)


def test_dropping_a_sequence_ends_its_call(client: Client) -> None:
    client.sequence(PROMPT).generate(1)
    gc.collect()
    wait_until_idle(client)


def test_closing_the_client_ends_sequences(address: str, client: Client) -> None:
    with Client(address, timeout=120) as closing:
        sequence = closing.sequence(PROMPT)
        sequence.generate(1)
        unused = closing.sequence(PROMPT)
        later = closing
    assert raises(lambda: sequence.generate(1)).code == StatusCode.CANCELLED
    assert raises(lambda: unused.generate(1)).code == StatusCode.CANCELLED
    error = raises(lambda: later.sequence(PROMPT).generate(1))
    assert error.code == StatusCode.FAILED_PRECONDITION
    wait_until_idle(client)


def test_deadline(client: Client) -> None:
    sequence = client.sequence(PROMPT, timeout=0.2, ignore_eos=True)
    assert raises(lambda: sequence.generate(8000)).code == StatusCode.DEADLINE_EXCEEDED
    wait_until_idle(client)


def test_the_first_command_waits_for_room(start_server: Callable[..., Server]) -> None:
    server = start_server("--max-num-seqs", "1", "--max-queued-requests", "0")
    with Client(server.address, retry=RetryPolicy(max_attempts=1)) as client:
        first = client.generate(PROMPT, max_new_tokens=8000, ignore_eos=True)
        next(first)
        assert raises(client.sequence(PROMPT).stream(1).result).retry_after == 1.0
        with Client(server.address, timeout=120) as patient:
            waiting = patient.sequence(PROMPT).stream(1)
            first.cancel()
            assert waiting.result().token_ids


def test_a_crash_loses_the_sequence(start_server: Callable[..., Server]) -> None:
    server = start_server()
    with Client(server.address, timeout=120) as client:
        with client.sequence(PROMPT) as sequence:
            sequence.generate(1)
            server.kill()
            assert raises(lambda: sequence.generate(1)).code == StatusCode.UNAVAILABLE
        with client.sequence(PROMPT) as sequence:
            stream = sequence.stream(1)
            start_server(port=server.port)
            assert stream.result().token_ids  # tried again: it had not begun
