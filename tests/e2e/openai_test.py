#!/usr/bin/env python3
"""The official openai package against a server. Argument: the program recurve-server.

Exit status 77, and a line that says why, where the package is missing."""

import asyncio
import hashlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
try:
    import openai
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

SERVER = sys.argv.pop(1)
ROOT = Path(__file__).resolve().parents[2]
PROMPT = "def fibonacci(n):\n"


class Server:
    def __init__(self, *flags):
        # The sanitizers' options come with the environment; proxies must not.
        self.process = subprocess.Popen(
            [SERVER, "--model", str(ROOT / "deploy/models/demo"), "--device", "cpu",
             "--grpc-port", "0", "--http-port", "0", *flags],
            stdout=subprocess.PIPE, text=True,
            env={**os.environ, "RECURVE_NUM_THREADS": "1"})
        line = self.process.stdout.readline()
        self.url = re.fullmatch(r"listening http=(.+)\n", line)[1]
        self.process.stdout.readline()  # gRPC: it is up

    def options(self, key="none"):
        return {"base_url": f"http://{self.url}/v1", "api_key": key, "max_retries": 0,
                "timeout": 120}

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(timeout=120)
        self.process.stdout.close()
        return status


class OpenAiTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        for name in ("http_proxy", "https_proxy", "all_proxy"):
            os.environ.pop(name, None)
            os.environ.pop(name.upper(), None)
        cls.server = Server()
        cls.client = openai.OpenAI(**cls.server.options())

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        assert cls.server.stop() == 0

    def test_models(self):
        self.assertEqual(["demo"], [m.id for m in self.client.models.list()])
        self.assertEqual("demo", self.client.models.retrieve("demo").id)

    def test_a_completion_and_its_stream_are_the_same(self):
        options = dict(model="demo", prompt=PROMPT, max_tokens=30, temperature=0.9, top_p=0.9,
                       seed=11, frequency_penalty=0.1, presence_penalty=0.1,
                       logit_bias={"10": -1}, logprobs=2, user="me",
                       extra_body={"top_k": 40, "min_p": 0.01, "ignore_eos": True,
                                   "return_token_ids": True})
        whole = self.client.completions.create(**options)
        choice = whole.choices[0]
        self.assertEqual("length", choice.finish_reason)
        self.assertEqual((19, 30, 49), (whole.usage.prompt_tokens, whole.usage.completion_tokens,
                                        whole.usage.total_tokens))
        self.assertEqual(30, len(choice.logprobs.tokens))
        self.assertEqual(choice.text, "".join(choice.logprobs.tokens))
        text, ids, usage = "", [], None
        for event in self.client.completions.create(
                **options, stream=True, stream_options={"include_usage": True}):
            if event.usage:
                usage = event.usage
                continue
            text += event.choices[0].text
            ids += event.choices[0].token_ids
        self.assertEqual(choice.text, text)
        self.assertEqual(choice.token_ids, ids)
        self.assertEqual(30, usage.completion_tokens)

    def test_many_at_once_are_as_alone(self):
        def options(i):
            return dict(model="demo", prompt=f"{PROMPT}# {i}\n", max_tokens=20, seed=i)

        alone = [self.client.completions.create(**options(i)).choices[0].text for i in range(6)]

        async def run():
            async with openai.AsyncOpenAI(**self.server.options()) as client:
                async def one(i):
                    text = ""
                    async for event in await client.completions.create(**options(i), stream=True):
                        text += event.choices[0].text
                    return text
                return await asyncio.gather(*(one(i) for i in range(6)))

        self.assertEqual(alone, asyncio.run(run()))
        together = self.client.completions.create(
            model="demo", prompt=[PROMPT, PROMPT], max_tokens=8, temperature=0)
        self.assertEqual(2, len(together.choices))
        self.assertEqual(together.choices[0].text, together.choices[1].text)

    def test_stops(self):
        choice = self.client.completions.create(
            model="demo", prompt=PROMPT, max_tokens=160, temperature=0,
            stop=["np.arr"]).choices[0]
        self.assertEqual(("stop", "    return "), (choice.finish_reason, choice.text))

    def test_a_stream_may_be_closed(self):
        stream = self.client.completions.create(
            model="demo", prompt=PROMPT, max_tokens=8000, stream=True,
            extra_body={"ignore_eos": True})
        next(iter(stream))
        stream.close()
        self.assertEqual(1, len(self.client.completions.create(
            model="demo", prompt="a", max_tokens=1).choices))

    def test_several_continuations(self):
        answer = self.client.completions.create(
            model="demo", prompt="def f(x):", n=3, max_tokens=8, temperature=1.0, seed=3)
        self.assertEqual([0, 1, 2], [choice.index for choice in answer.choices])
        self.assertEqual(3, len({choice.text for choice in answer.choices}))

    def test_errors(self):
        def error_of(kind, **options):
            with self.assertRaises(kind) as caught:
                self.client.completions.create(**{"model": "demo", "prompt": "a", **options})
            return caught.exception

        error = error_of(openai.BadRequestError, temperature=101)
        self.assertEqual("temperature", error.param)
        self.assertIn("expected 0 to 100", error.message)
        self.assertEqual("n", error_of(openai.BadRequestError, n=17).param)
        self.assertEqual("colour",
                         error_of(openai.BadRequestError, extra_body={"colour": 1}).param)
        self.assertEqual("context_length_exceeded",
                         error_of(openai.BadRequestError, max_tokens=100000).code)
        self.assertEqual("model_not_found", error_of(openai.NotFoundError, model="gpt").code)
        with self.assertRaises(openai.NotFoundError):
            self.client.chat.completions.create(
                model="demo", messages=[{"role": "user", "content": "a"}])

    def test_keys_and_quotas(self):
        with tempfile.NamedTemporaryFile("w") as keys:
            digest = hashlib.sha256(b"right").hexdigest()
            keys.write(f"acme sha256={digest} tokens_per_second=1 token_burst=100\n")
            keys.flush()
            server = Server("--api-keys-file", keys.name)
            try:
                with openai.OpenAI(**server.options("wrong")) as client, \
                        self.assertRaises(openai.AuthenticationError):
                    client.models.list()
                with openai.OpenAI(**server.options("right")) as client:
                    options = dict(model="demo", prompt="a", max_tokens=70,
                                   extra_body={"ignore_eos": True})
                    client.completions.create(**options)
                    with self.assertRaises(openai.RateLimitError) as caught:
                        client.completions.create(**options)
                    self.assertGreaterEqual(
                        int(caught.exception.response.headers["retry-after"]), 1)
            finally:
                self.assertEqual(0, server.stop())


if __name__ == "__main__":
    unittest.main()
