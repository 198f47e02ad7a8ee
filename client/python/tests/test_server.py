"""The blocking client against the real server."""

from __future__ import annotations

import dataclasses
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
    Health,
    Load,
    ModelInfo,
    Params,
    RecurveError,
    RetryPolicy,
    ServerInfo,
    StatusCode,
)
from recurve.v1 import control_pb2

PROMPT = "def add(a, b):"
NO_RETRY = RetryPolicy(max_attempts=1)
# Far more than a test waits for.
LONG = Params(max_new_tokens=8000, ignore_eos=True)


def seeded(params: Params, seed: int) -> Params:
    return {**params, "seed": seed}


def test_streams_text(client: Client) -> None:
    stream = client.generate(PROMPT, max_new_tokens=24)
    pieces = list(stream)
    result = stream.result()
    assert "".join(p.text for p in pieces) == result.text
    assert tuple(i for p in pieces for i in p.ids) == result.token_ids
    assert [p.index for p in pieces] == [sum(len(q.ids) for q in pieces[:n])
                                         for n in range(len(pieces))]  # fmt: skip
    # As README.md shows it.
    assert result.text == "\n        return add(a, b"
    assert result.finish_reason == FinishReason.LENGTH
    assert result.usage.completion_tokens == len(result.token_ids) == 24
    assert result.usage.prompt_tokens == 15
    assert 0 <= result.timings.time_to_first_token_seconds <= result.timings.total_seconds
    assert len(result.request_id) == 16


def test_ids_are_used_as_they_are(client: Client) -> None:
    bos = client.model_info().bos_token_id
    assert bos is not None
    ids = [bos, *PROMPT.encode()]
    by_ids = client.generate(ids, max_new_tokens=9).result()
    assert by_ids.usage.prompt_tokens == len(ids)
    assert by_ids.token_ids == client.generate(PROMPT, max_new_tokens=9).result().token_ids
    assert client.generate(tuple(ids), max_new_tokens=1).result().token_ids == by_ids.token_ids[:1]


def test_sampling_is_repeatable(client: Client) -> None:
    params = Params(max_new_tokens=40, temperature=1.5, top_k=50, top_p=0.9, min_p=0.01)
    first = client.generate(PROMPT, **params).result()
    again = client.generate(PROMPT, **seeded(params, first.seed)).result()
    assert again.token_ids == first.token_ids
    assert again.seed == first.seed
    texts = {client.generate(PROMPT, **seeded(params, s)).result().text for s in range(4)}
    assert len(texts) > 1


def test_logit_bias_and_stops(client: Client) -> None:
    plain = client.generate(PROMPT, max_new_tokens=24).result()
    biased = client.generate(PROMPT, max_new_tokens=3, logit_bias={ord("x"): 100}).result()
    assert biased.text == "xxx"
    stopped = client.generate(PROMPT, max_new_tokens=24, stop_strings=["add"]).result()
    assert stopped.finish_reason == FinishReason.STOP_STRING
    assert stopped.stop_string == "add"
    assert stopped.text == plain.text.split("add")[0]
    by_id = client.generate(PROMPT, max_new_tokens=24, stop_token_ids=[ord("r")]).result()
    assert by_id.finish_reason == FinishReason.STOP_TOKEN
    assert by_id.token_ids[-1] == ord("r")


def test_logprobs(client: Client) -> None:
    result = client.generate(PROMPT, max_new_tokens=5, logprobs=3).result()
    assert len(result.logprobs) == 5
    for token, entry in zip(result.token_ids, result.logprobs, strict=True):
        assert len(entry.top) == 3
        assert entry.top[0] == (token, entry.logprob)  # greedy
        assert entry.top[0][1] >= entry.top[1][1] >= entry.top[2][1]
        assert sum(math.exp(p) for _, p in entry.top) <= 1 + 1e-5
    chosen = client.generate(PROMPT, max_new_tokens=5, logprobs=0).result()
    assert [e.logprob for e in chosen.logprobs] == [e.logprob for e in result.logprobs]
    assert chosen.logprobs[0].top == ()
    assert client.generate(PROMPT, max_new_tokens=5).result().logprobs == ()


def test_logprobs_of_the_prompt(client: Client) -> None:
    result = client.generate(PROMPT, max_new_tokens=5, prompt_logprobs=2, logprobs=2).result()
    # The first token is the beginning of the sequence.
    assert [token.id for token in result.prompt_logprobs] == list(PROMPT.encode())
    assert all(len(token.top) == 2 for token in result.prompt_logprobs)
    assert all(token.logprob <= 0 for token in result.prompt_logprobs)
    assert result.usage.cache.cached_tokens == 0
    assert result.usage.cache.miss == "disabled"
    # Those that a token had when it was generated, which a prompt repeats.
    again = client.generate(PROMPT + result.text, max_new_tokens=0, prompt_logprobs=2).result()
    assert again.token_ids == ()
    for scored, drawn in zip(again.prompt_logprobs[-5:], result.logprobs, strict=True):
        assert math.isclose(scored.logprob, drawn.logprob, abs_tol=1e-4)
    assert client.generate(PROMPT, max_new_tokens=1).result().prompt_logprobs == ()


def test_several_continuations(client: Client) -> None:
    stream = client.generate(
        PROMPT, max_new_tokens=8, temperature=3, seed=5, n=3, prompt_logprobs=0
    )
    seen = {tokens.sample for tokens in stream}
    results = stream.results()
    assert seen == {0, 1, 2}
    assert len({result.text for result in results}) == 3
    assert stream.result() == results[0]
    assert results[0].seed == 5
    assert [len(result.prompt_logprobs) for result in results] == [len(PROMPT), 0, 0]
    alone = client.generate(PROMPT, max_new_tokens=8, temperature=3, seed=results[2].seed)
    assert alone.result().token_ids == results[2].token_ids


def test_min_tokens(client: Client) -> None:
    plain = client.generate(PROMPT, max_new_tokens=24).result()
    stop = plain.text[3]
    early = client.generate(PROMPT, max_new_tokens=24, stop_token_ids=[ord(stop)])
    assert early.result().text == plain.text[: plain.text.index(stop)]
    late = client.generate(
        PROMPT, max_new_tokens=24, stop_token_ids=[ord(stop)], min_tokens=20
    ).result()
    assert len(late.token_ids) > 20
    assert ord(stop) not in late.token_ids[:20]
    included = client.generate(
        PROMPT, max_new_tokens=24, stop_strings=["add"], include_stop_str_in_output=True
    ).result()
    assert included.text.endswith("add")


BAD: list[tuple[dict[str, Any], str]] = [
    ({"prompt": []}, "prompt_ids"),
    ({"prompt": [1, 2, 999]}, "prompt_ids[2]"),
    ({"prompt": [1, -1]}, "prompt_ids[1]"),
    ({"prompt": [1, "2"]}, "prompt_ids[1]"),
    ({"prompt": [2**31]}, "prompt_ids[0]"),
    ({"prompt": b"bytes"}, "prompt_ids"),
    ({"prompt": "\ud800"}, "prompt_text"),
    ({"temperature": -0.5}, "sampling.temperature"),
    ({"temperature": float("nan")}, "sampling.temperature"),
    ({"temperature": "hot"}, "sampling.temperature"),
    ({"top_p": 0}, "sampling.top_p"),
    ({"min_p": 2}, "sampling.min_p"),
    ({"top_k": -1}, "sampling.top_k"),
    ({"repetition_penalty": 0}, "sampling.repetition_penalty"),
    ({"presence_penalty": 3}, "sampling.presence_penalty"),
    ({"frequency_penalty": -3}, "sampling.frequency_penalty"),
    ({"seed": -1}, "sampling.seed"),
    ({"logit_bias": {5: 101}}, "sampling.logit_bias[5]"),
    ({"logit_bias": {9999: 1}}, "sampling.logit_bias"),
    ({"logit_bias": {-1: 1}}, "sampling.logit_bias[-1]"),
    ({"logit_bias": [1]}, "sampling.logit_bias"),
    ({"max_new_tokens": 0}, "stopping.max_new_tokens"),
    ({"prompt_logprobs": 21}, "prompt_logprobs"),
    ({"prompt_logprobs": -1}, "prompt_logprobs"),
    ({"n": 17}, "n"),
    ({"n": 0}, "n"),
    ({"min_tokens": 9, "max_new_tokens": 8}, "stopping.min_tokens"),
    ({"min_tokens": -1}, "stopping.min_tokens"),
    ({"skip_special_tokens": "yes"}, "stopping.skip_special_tokens"),
    ({"max_new_tokens": 1.5}, "stopping.max_new_tokens"),
    ({"max_new_tokens": 100000}, "stopping.max_new_tokens"),  # prompt and output together
    ({"stop_token_ids": [1, 999]}, "stopping.stop_token_ids[1]"),
    ({"stop_token_ids": [1] * 65}, "stopping.stop_token_ids"),
    ({"stop_strings": "text"}, "stopping.stop_strings"),
    ({"stop_strings": ["a", ""]}, "stopping.stop_strings[1]"),
    ({"stop_strings": ["a"] * 17}, "stopping.stop_strings"),
    ({"priority": 101}, "priority"),
    ({"logprobs": 21}, "logprobs"),
]


@pytest.mark.parametrize(("bad", "field"), BAD, ids=lambda x: str(x)[:40])
def test_bad_input_names_the_field(client: Client, bad: dict[str, Any], field: str) -> None:
    prompt = bad.pop("prompt", PROMPT)
    with pytest.raises(RecurveError) as error:
        client.generate(prompt, **bad).result()
    assert error.value.code == StatusCode.INVALID_ARGUMENT
    assert error.value.field == field
    assert field in error.value.message


def test_unknown_parameters_are_refused(client: Client) -> None:
    with pytest.raises(TypeError, match="max_tokens"):
        client.generate(PROMPT, max_tokens=5)  # type: ignore[call-arg]


def test_cancel(client: Client) -> None:
    stream = client.generate(PROMPT, **LONG)
    assert next(stream).ids
    stream.cancel()
    for _ in range(2):  # and when asked again
        with pytest.raises(RecurveError) as error:
            stream.result()
        assert error.value.code == StatusCode.CANCELLED
    wait_until_idle(client)


def test_cancel_from_another_thread(client: Client) -> None:
    stream = client.generate(PROMPT, **LONG)
    next(stream)
    thread = threading.Thread(target=stream.cancel)
    thread.start()
    with pytest.raises(RecurveError) as error:
        stream.result()
    thread.join()
    assert error.value.code == StatusCode.CANCELLED


def test_leaving_the_block_ends_the_call(client: Client) -> None:
    with client.generate(PROMPT, **LONG) as stream:
        for tokens in stream:
            assert tokens.ids
            break
    wait_until_idle(client)


def test_dropping_the_stream_ends_the_call(client: Client) -> None:
    for tokens in client.generate(PROMPT, **LONG):
        assert tokens.ids
        break
    gc.collect()
    wait_until_idle(client)


def test_result_after_the_block(client: Client) -> None:
    with client.generate(PROMPT, max_new_tokens=5) as stream:
        pieces = list(stream)
    assert stream.result().text == "".join(p.text for p in pieces)


def test_abort(client: Client) -> None:
    stream = client.generate(PROMPT, **LONG)
    request_id = stream.request_id()
    assert request_id is not None
    client.abort(request_id)
    with pytest.raises(RecurveError) as error:
        stream.result()
    assert error.value.code == StatusCode.CANCELLED
    wait_until_idle(client)
    with pytest.raises(RecurveError) as error:
        client.abort(request_id)
    assert error.value.code == StatusCode.NOT_FOUND
    with pytest.raises(RecurveError) as error:
        client.abort("nonsense")
    assert error.value.code == StatusCode.INVALID_ARGUMENT
    assert error.value.field == "request_id"


def test_deadline(client: Client) -> None:
    with pytest.raises(RecurveError) as error:
        client.generate(PROMPT, timeout=0.05, **LONG).result()
    assert error.value.code == StatusCode.DEADLINE_EXCEEDED
    wait_until_idle(client)


def test_deadline_of_the_client(address: str) -> None:
    with Client(address, timeout=0.05) as client:
        with pytest.raises(RecurveError) as error:
            client.generate(PROMPT, **LONG).result()
    assert error.value.code == StatusCode.DEADLINE_EXCEEDED


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf")])
def test_timeouts_are_checked(client: Client, timeout: float) -> None:
    with pytest.raises(RecurveError) as error:
        client.generate(PROMPT, timeout=timeout)
    assert error.value.field == "timeout"


def test_info(client: Client) -> None:
    model = client.model_info()
    assert (model.family, model.tokenizer) == ("recurve", "bytes")
    assert model.parameters == 5334272
    assert len(model.mixers) == model.num_layers
    assert set(model.mixers) == {"tpa", "linear"}
    server = client.server_info()
    assert server.max_num_seqs == 32
    assert server.uptime_seconds > 0 and not server.draining
    assert client.load().state_slots_total == 32
    for cls in (ModelInfo, ServerInfo, Load):
        message = getattr(control_pb2, cls.__name__)
        assert [f.name for f in dataclasses.fields(cls)] == list(message.DESCRIPTOR.fields_by_name)


def test_health(client: Client) -> None:
    assert client.health() == Health.SERVING
    assert client.health("recurve.v1.Inference") == Health.SERVING
    with pytest.raises(RecurveError) as error:
        client.health("unknown")
    assert error.value.code == StatusCode.NOT_FOUND


@pytest.mark.parametrize("bad", [5, None, "\ud800"], ids=ascii)
def test_names_that_are_no_text(client: Client, bad: Any) -> None:
    for field, call in (("service", client.health), ("request_id", client.abort)):
        with pytest.raises(RecurveError) as error:
            call(bad)
        assert error.value.code == StatusCode.INVALID_ARGUMENT
        assert error.value.field == field
        assert error.value.message.startswith(f"{field} is {bad!r}: ")


def test_a_full_server(start_server: Callable[..., Server]) -> None:
    server = start_server("--max-num-seqs", "1", "--max-queued-requests", "0")
    with Client(server.address, retry=NO_RETRY) as client:
        first = client.generate(PROMPT, **LONG)
        next(first)
        refused = client.generate(PROMPT, max_new_tokens=1)
        assert refused.request_id() is None
        with pytest.raises(RecurveError) as error:
            refused.result()
        assert error.value.code == StatusCode.RESOURCE_EXHAUSTED
        assert error.value.retry_after == 1.0
        with Client(server.address, timeout=120) as patient:
            waiting = patient.generate(PROMPT, max_new_tokens=1)
            assert waiting.request_id() is None
            first.cancel()
            assert waiting.result().usage.completion_tokens == 1


def test_a_message_too_large(client: Client) -> None:
    with pytest.raises(RecurveError) as error:
        client.generate("x" * (5 << 20)).result()
    assert error.value.code == StatusCode.RESOURCE_EXHAUSTED
    assert error.value.retry_after is None


def test_metadata_too_large(address: str) -> None:
    with Client(address, timeout=120, metadata={"x-large": "v" * 20000}) as client:
        with pytest.raises(RecurveError) as error:
            client.generate(PROMPT).result()
        assert error.value.code == StatusCode.RESOURCE_EXHAUSTED
        assert error.value.retry_after is None


def test_drain(start_server: Callable[..., Server]) -> None:
    server = start_server("--shutdown-timeout", "3600")
    with Client(server.address, retry=NO_RETRY) as client:
        stream = client.generate(PROMPT, max_new_tokens=4000, ignore_eos=True)
        next(stream)
        assert client.drain() == 1
        with pytest.raises(RecurveError) as error:
            client.generate(PROMPT, max_new_tokens=1).result()
        assert error.value.code == StatusCode.UNAVAILABLE
        assert stream.result().usage.completion_tokens == 4000
    assert server.wait() == 0


def test_resume_after_a_crash(start_server: Callable[..., Server]) -> None:
    server = start_server()
    params = Params(max_new_tokens=3000, ignore_eos=True, temperature=1.0, logprobs=1)
    retry = RetryPolicy(max_attempts=100, max_backoff=0.5)
    with Client(server.address, timeout=300, retry=retry) as client:
        stream = client.generate(PROMPT, resume=True, **params)
        pieces = [next(stream)]
        broken = stream.request_id()
        server.kill()
        start_server(port=server.port)
        pieces += stream
        result = stream.result()
        assert result.request_id != broken  # the kill came before the end
        assert len(result.token_ids) == 3000
        assert tuple(i for p in pieces for i in p.ids) == result.token_ids
        whole = client.generate(PROMPT, **seeded(params, result.seed)).result()
        assert (whole.token_ids, whole.text) == (result.token_ids, result.text)
        assert whole.logprobs == result.logprobs


def test_without_resume_a_crash_is_an_error(start_server: Callable[..., Server]) -> None:
    server = start_server()
    with Client(server.address, timeout=60) as client:
        stream = client.generate(PROMPT, **LONG)
        next(stream)
        server.kill()
        with pytest.raises(RecurveError) as error:
            stream.result()
        assert error.value.code == StatusCode.UNAVAILABLE
