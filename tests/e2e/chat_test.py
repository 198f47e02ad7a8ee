#!/usr/bin/env python3
"""Chat as clients of OpenAI's API use it: the packages openai and langchain-openai against a
server. Argument: the program recurve-server.

Exit status 77, and a line that says why, where a package is missing."""

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import unittest
import urllib.request
from pathlib import Path

sys.dont_write_bytecode = True
try:
    import httpx
    import jinja2  # noqa: F401: for the server
    import openai
    from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
    from langchain_openai import ChatOpenAI
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

SERVER = sys.argv.pop(1)
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/testing"))
import chat_model  # noqa: E402

ANSWER = "".join(chat_model.ANSWER.values())
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": CITY}}]
# Marks that a model's template has where it reasons and calls; the model below says them.
TEMPLATE = """{#- <think></think> <tool_call> -#}
{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}{% for message in messages %}{% if message.role == 'system' and not loop.first %}
{{- raise_exception('The system speaks first.') }}{% endif %}<|im_start|>{{ message.role }}
{{ message.content }}{% for call in message.tool_calls %}<tool_call>
{{ {'name': call.function.name, 'arguments': call.function.arguments} | tojson }}
</tool_call>{% endfor %}<|im_end|>
{% if message.content == 'hang' %}{% for i in range(99999) %}{% for j in range(99999) %}
{%- endfor %}{% endfor %}{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% if thinking %}<think>
{% endif %}{% if tools %}<|use_tools|>{% else %}<|answer|>{% endif %}{% endif %}"""

for name in ("http_proxy", "https_proxy", "all_proxy"):
    os.environ.pop(name, None)
    os.environ.pop(name.upper(), None)


class Server:
    def __init__(self, model, *flags, environment=None):
        # The sanitizers' options come with the environment.
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [SERVER, "--model", str(model), "--device", "cpu", "--grpc-port", "0",
             "--http-port", "0", *flags],
            stdout=subprocess.PIPE, stderr=self.log, text=True,
            env={**os.environ, "RECURVE_NUM_THREADS": "1", **(environment or {})})
        line = self.process.stdout.readline()
        self.url = "http://" + re.fullmatch(r"listening http=(.+)\n", line)[1]
        self.process.stdout.readline()  # gRPC: it is up

    def client(self, kind=openai.OpenAI):
        return kind(base_url=self.url + "/v1", api_key="none", max_retries=0, timeout=120)

    def post(self, body, path="/v1/chat/completions"):
        return httpx.post(self.url + path, json=body, timeout=120)

    def metric(self, name):
        with urllib.request.urlopen(self.url + "/metrics", timeout=60) as answer:
            return sum(map(float, re.findall(rf"^{name}(?:{{.*}})? (\S+)$",
                                             answer.read().decode(), re.M)))

    def children(self):
        """Processes that render templates."""
        found = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = stat.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == self.process.pid:
                found.append(int(stat.parent.name))
        return found

    def text(self):
        self.log.seek(0)
        return self.log.read()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(timeout=120)
        self.process.stdout.close()
        self.log.close()
        return status


class ChatCase(unittest.TestCase):
    flags = ()

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.model = Path(cls.folder.name) / "chat"
        chat_model.write_chat_model(cls.model)
        (cls.model / "chat_template.jinja").write_text(TEMPLATE)
        cls.server = Server(cls.model, "--chat-python", sys.executable, *cls.flags)
        cls.client = cls.server.client()

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        assert cls.server.stop() == 0
        cls.folder.cleanup()

    def chat(self, text="Hi", **options):
        messages = text if isinstance(text, list) else [{"role": "user", "content": text}]
        return self.client.chat.completions.create(
            **{"model": "chat", "messages": messages, "temperature": 0, **options})


class OpenAiTest(ChatCase):
    def test_an_answer(self):
        answer = self.chat([{"role": "developer", "content": "Be kind."},
                            {"role": "user", "name": "me",
                             "content": [{"type": "text", "text": "Hi"},
                                         {"type": "text", "text": "there"}]}])
        choice = answer.choices[0]
        self.assertEqual(("assistant", ANSWER, None), (
            choice.message.role, choice.message.content, choice.message.tool_calls))
        self.assertEqual("stop", choice.finish_reason)
        self.assertIsNone(choice.logprobs)
        self.assertEqual("chat.completion", answer.object)
        self.assertTrue(answer.id.startswith("chatcmpl-"))
        prompt = ("<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi\nthere<|im_end|>\n"
                  "<|im_start|>assistant\n<|answer|>")
        tokens = self.server.post({"prompt": prompt}, "/tokenize").json()["count"]
        self.assertEqual((tokens, len(chat_model.ANSWER) + 1),
                         (answer.usage.prompt_tokens, answer.usage.completion_tokens))

    def test_a_rendered_chat_is_what_runs(self):
        body = {"messages": [{"role": "user", "content": "Hi"}], "temperature": 0}
        rendered = self.server.post(body, "/v1/chat/completions/render")
        self.assertEqual(200, rendered.status_code, rendered.text)
        ids = rendered.json()["token_ids"]
        text = self.server.post({"tokens": ids}, "/detokenize").json()["prompt"]
        self.assertIn("user\nHi", text)
        self.assertEqual(400, self.server.post({"messages": 1},
                                               "/v1/chat/completions/render").status_code)
        again = self.server.post({"prompt": ids, "temperature": 0}, "/v1/completions").json()
        self.assertEqual(ANSWER, again["choices"][0]["text"])
        self.assertEqual(len(ids), self.chat().usage.prompt_tokens)

    def test_a_stream_is_the_answer(self):
        events = list(self.chat(stream=True, n=2, logprobs=True, top_logprobs=1,
                                stream_options={"include_usage": True}))
        self.assertEqual({"chat.completion.chunk"}, {event.object for event in events})
        self.assertEqual([], events[-1].choices)
        self.assertEqual(2 * len(chat_model.ANSWER) + 2, events[-1].usage.completion_tokens)
        for index in range(2):
            choices = [event.choices[0] for event in events[:-1]
                       if event.choices[0].index == index]
            self.assertEqual(["assistant"] + [None] * (len(choices) - 1),
                             [choice.delta.role for choice in choices])
            self.assertEqual(ANSWER, "".join(choice.delta.content or "" for choice in choices))
            self.assertEqual([None] * (len(choices) - 1) + ["stop"],
                             [choice.finish_reason for choice in choices])
            tokens = [token for choice in choices for token in choice.logprobs.content]
            self.assertEqual(ANSWER, b"".join(bytes(token.bytes) for token in tokens).decode())
            self.assertEqual([token.token for token in tokens],
                             [token.top_logprobs[0].token for token in tokens])

    def test_tools(self):
        whole = self.chat(tools=TOOLS).choices[0]
        self.assertEqual(("tool_calls", None), (whole.finish_reason, whole.message.content))
        call = whole.message.tool_calls[0]
        self.assertEqual(("function", "get_weather", {"city": "Paris"}),
                         (call.type, call.function.name, json.loads(call.function.arguments)))
        with self.client.chat.completions.stream(
                model="chat", messages=[{"role": "user", "content": "Hi"}], tools=TOOLS,
                temperature=0) as stream:
            choice = stream.get_final_completion().choices[0]
        self.assertEqual("tool_calls", choice.finish_reason)
        self.assertEqual(call.function.arguments, choice.message.tool_calls[0].function.arguments)
        # What a tool answered goes on from there.
        answer = self.chat([
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": None, "tool_calls": [call.model_dump()]},
            {"role": "tool", "tool_call_id": call.id, "content": "Sunny"}],
            tools=TOOLS, tool_choice="none")
        self.assertEqual(ANSWER, answer.choices[0].message.content)

    def test_a_call_can_be_asked_for(self):
        # The prompt begins it, and the model goes on from there.
        named = {"type": "function", "function": {"name": "get_weather"}}
        for thinking in (False, True):
            body = {"chat_template_kwargs": {"thinking": thinking}}
            call = self.chat(tools=TOOLS, tool_choice=named, extra_body=body).choices[0]
            self.assertEqual('{"city":"Paris"}', call.message.tool_calls[0].function.arguments)
            self.assertEqual("tool_calls", call.finish_reason)
            # This model cannot choose a name: what it says is no call.
            any_of = self.chat(tools=TOOLS, tool_choice="required", max_tokens=3,
                               extra_body=body).choices[0]
            self.assertEqual('<tool_call>\n{"name": "aaa', any_of.message.content)
            self.assertEqual("length", any_of.finish_reason)

    def test_reasoning_is_apart(self):
        answer = self.chat(extra_body={"chat_template_kwargs": {"thinking": True}}).choices[0]
        self.assertEqual(("", ANSWER), (answer.message.content, answer.message.reasoning_content))
        hidden = self.chat(extra_body={"chat_template_kwargs": {"thinking": True},
                                       "include_reasoning": False}).choices[0]
        self.assertFalse(hasattr(hidden.message, "reasoning_content"))
        deltas = [event.choices[0].delta for event in self.chat(
            stream=True, extra_body={"chat_template_kwargs": {"thinking": True}})]
        self.assertEqual(ANSWER, "".join(getattr(d, "reasoning_content", "") for d in deltas))
        self.assertEqual("", "".join(d.content or "" for d in deltas))

    def test_options(self):
        stopped = self.chat(stop=["world"]).choices[0]
        self.assertEqual(("Hello, ", "stop", "world"), (
            stopped.message.content, stopped.finish_reason, stopped.stop_reason))
        short = self.chat(max_completion_tokens=2).choices[0]
        self.assertEqual(("Hello, ", "length"), (short.message.content, short.finish_reason))
        longer = self.chat(extra_body={"min_tokens": 12}, max_tokens=12).choices[0]
        self.assertEqual("length", longer.finish_reason)
        seeds = [self.chat(temperature=1.5, seed=3, max_tokens=9).choices[0].message.content
                 for _ in range(2)]
        self.assertEqual(*seeds)
        final = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
        self.assertEqual(", world!!", self.chat(final, extra_body={
            "continue_final_message": True,
            "add_generation_prompt": False}).choices[0].message.content)

    def test_a_kept_state_comes_with_the_whole_text(self):
        # Text that may begin the stop string is held back until the end.
        for stream in (False, True):
            body = {"prompt": "<|answer|>", "max_tokens": 4, "temperature": 0, "stop": ["!!x"],
                    "keep_state": True, "stream": stream}
            answer = self.server.post(body, "/v1/completions")
            if stream:
                events = [json.loads(line[6:]) for line in answer.text.splitlines()
                          if line.startswith("data: {")]
                choices = [event["choices"][0] for event in events]
                self.assertEqual(["length"], [c["finish_reason"] for c in choices[-1:]])
                self.assertTrue(all(c["finish_reason"] is None for c in choices[:-1]))
                text = "".join(choice["text"] for choice in choices)
            else:
                choices = answer.json()["choices"]
                text = choices[0]["text"]
            self.assertEqual(ANSWER, text)
            self.assertTrue(choices[-1]["state"]["id"])

    def test_many_at_once_are_as_alone(self):
        def options(i):
            return dict(model="chat", messages=[{"role": "user", "content": f"{i}"}], seed=i,
                        temperature=2, max_tokens=20, logprobs=True)

        def shown(answer):
            return [(t.token, t.logprob) for t in answer.choices[0].logprobs.content]

        alone = [shown(self.client.chat.completions.create(**options(i))) for i in range(8)]

        async def run():
            async with self.server.client(openai.AsyncOpenAI) as client:
                return await asyncio.gather(*(
                    client.chat.completions.create(**options(i)) for i in range(8)))

        self.assertEqual(alone, [shown(answer) for answer in asyncio.run(run())])

    def test_the_next_turn_hits(self):
        def cached(messages, **options):
            usage = self.chat(messages, extra_body={"prompt_cache_key": "turns"},
                              **options).usage
            return usage.prompt_tokens_details.cached_tokens, usage.prompt_tokens

        messages = [{"role": "system", "content": "S" * 300},
                    {"role": "user", "content": "first " * 20}]
        self.assertEqual(0, cached(messages)[0])
        messages += [{"role": "assistant", "content": ANSWER}, {"role": "user", "content": "x"}]
        count, prompt = cached(messages)
        # All but the new messages, less what chunks round down.
        self.assertGreater(count, 350)
        self.assertLess(count, prompt)

    def test_a_marked_place_is_kept(self):
        def ask(text, key):
            system = {"type": "text", "text": f"{key}" * 400,
                      "cache_control": {"type": "ephemeral"}}
            return self.chat([{"role": "system", "content": [system]},
                              {"role": "user", "content": text}],
                             extra_body={"prompt_cache_key": key},
                             ).usage.prompt_tokens_details.cached_tokens

        self.assertEqual(0, ask("one thing " * 30, "m"))
        # The second prompt parts from the first after the system's message.
        self.assertGreater(ask("another " * 30, "m"), 350)

    def test_errors_name_the_field(self):
        def problem(**options):
            with self.assertRaises(openai.BadRequestError) as caught:
                self.chat(**options)
            return caught.exception.param, caught.exception.body["message"]

        self.assertEqual("messages", problem(text=[{"role": "boss", "content": "x"}])[0])
        param, message = problem(text=[{"role": "user", "content": "a"},
                                       {"role": "system", "content": "b"}])
        self.assertEqual(("messages", "messages: the chat template refuses them: The system "
                          "speaks first."), (param, message))
        param, message = problem(text="word " * 70000)
        self.assertEqual("messages", param)
        self.assertIn("max_model_len", message)
        with self.assertRaises(openai.NotFoundError):
            self.chat(model="other")
        broken = httpx.post(self.server.url + "/v1/chat/completions", content=b'{"messages": [',
                            headers={"Content-Type": "application/json"})
        self.assertEqual((400, "invalid_request_error"),
                         (broken.status_code, broken.json()["error"]["type"]))
        large = self.server.post({"messages": [{"role": "user", "content": "x" * 10_000_000}]})
        self.assertEqual(413, large.status_code)
        self.assertEqual(0, self.server.metric("recurve_num_requests_running"))
        self.assertEqual(0, self.server.metric("recurve_num_requests_waiting"))

    def test_a_template_that_hangs_is_ended(self):
        others = []

        def ask():
            others.append(self.chat("fine").choices[0].message.content)

        with self.assertRaises(openai.BadRequestError) as caught:
            threads = [threading.Thread(target=ask) for _ in range(4)]
            for thread in threads:
                thread.start()
            self.chat("hang")
        for thread in threads:
            thread.join()
        self.assertIn("takes longer than 2000 ms", caught.exception.body["message"])
        self.assertEqual([ANSWER] * 4, others)
        self.assertEqual(ANSWER, self.chat().choices[0].message.content)

    def test_killed_renderers_come_back(self):
        for _ in range(3):
            self.chat()
            for pid in self.server.children():
                os.kill(pid, signal.SIGKILL)
            # No message notices.
            for _ in range(3):
                self.assertEqual(ANSWER, self.chat().choices[0].message.content)

    def test_a_closed_stream_ends_its_request(self):
        stream = self.chat(stream=True, extra_body={"ignore_eos": True}, max_tokens=60000)
        next(iter(stream))
        stream.close()
        while self.server.metric("recurve_num_requests_running") > 0:
            pass


class LangChainTest(ChatCase):
    def make(self, **options):
        return ChatOpenAI(model="chat", base_url=self.server.url + "/v1", api_key="none",
                          temperature=0, max_retries=0, **options)

    def test_messages(self):
        answer = self.make().invoke([SystemMessage("Be kind."), HumanMessage("Hi")])
        self.assertEqual(ANSWER, answer.content)
        self.assertEqual(len(chat_model.ANSWER) + 1, answer.usage_metadata["output_tokens"])

    def test_streams(self):
        parts = list(self.make(stream_usage=True).stream("Hi"))
        self.assertEqual(ANSWER, "".join(part.content for part in parts))
        self.assertTrue(any(part.usage_metadata for part in parts))

    def test_tools(self):
        def get_weather(city: str) -> str:
            """Says what the weather is."""
            return f"Sunny in {city}"

        model = self.make().bind_tools([get_weather])
        call = model.invoke("Hi").tool_calls[0]
        self.assertEqual(("get_weather", {"city": "Paris"}), (call["name"], call["args"]))
        streamed = None
        for part in model.stream("Hi"):
            streamed = part if streamed is None else streamed + part
        self.assertEqual([("get_weather", {"city": "Paris"})],
                         [(c["name"], c["args"]) for c in streamed.tool_calls])
        answer = self.make().invoke([
            HumanMessage("Hi"), AIMessage("", tool_calls=[call]),
            ToolMessage("Sunny", tool_call_id=call["id"])])
        self.assertEqual(ANSWER, answer.content)


class WithoutChatTest(unittest.TestCase):
    def check(self, model, *flags, says):
        server = Server(model, *flags)
        try:
            answer = server.post({"messages": [{"role": "user", "content": "Hi"}]})
            self.assertEqual((404, "chat_unavailable"),
                             (answer.status_code, answer.json()["error"]["code"]))
            self.assertIn(says, answer.json()["error"]["message"])
            # Everything else works.
            self.assertEqual(200, server.post({"prompt": "Hi", "max_tokens": 2},
                                              "/v1/completions").status_code)
            return server.text()
        finally:
            self.assertEqual(0, server.stop())

    def test_each_reason_is_said(self):
        with tempfile.TemporaryDirectory() as folder:
            model = Path(folder) / "chat"
            chat_model.write_chat_model(model)
            self.check(model, "--chat-python", "none", says="--chat-python none")
            log = self.check(model, "--chat-python", "no-such-python",
                             says="no-such-python cannot be started")
            self.assertIn("no chat: no-such-python", log)
            empty = Path(folder) / "python"
            empty.write_text(f"#!/bin/sh\nexec {sys.executable} -S \"$@\"\n")
            empty.chmod(0o755)
            self.check(model, "--chat-python", str(empty), says="cannot import jinja2")
            (model / "chat_template.jinja").write_text("{% if %}")
            self.check(model, "--chat-python", sys.executable,
                       says="chat_template.jinja: line 1")
            config = json.loads((model / "tokenizer_config.json").read_text())
            del config["chat_template"]
            (model / "tokenizer_config.json").write_text(json.dumps(config))
            (model / "chat_template.jinja").unlink()
            self.check(model, says="the checkpoint has no chat template")

    def test_a_template_that_is_asked_for_must_work(self):
        with tempfile.TemporaryDirectory() as folder:
            model = Path(folder) / "chat"
            chat_model.write_chat_model(model)
            other = Path(folder) / "other.jinja"
            other.write_text("{% if %}")
            for path in (other, Path(folder) / "missing"):
                run = subprocess.run(
                    [SERVER, "--model", str(model), "--device", "cpu", "--grpc-port", "0",
                     "--http-port", "0", "--chat-python", sys.executable,
                     "--chat-template", str(path)], capture_output=True, text=True, timeout=120)
                self.assertNotEqual(0, run.returncode)
                self.assertIn(str(path), run.stderr)
            shutil.rmtree(model)


if __name__ == "__main__":
    unittest.main()
