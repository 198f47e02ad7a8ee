#!/usr/bin/env python3
"""The gateway smg, as its package has it, in front of servers. Argument: the program
recurve-server.

Exit status 77, and a line that says why, where a package is missing."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.dont_write_bytecode = True
try:
    import grpc
    import openai
    import smg  # noqa: F401: run as a program
    from google.protobuf import descriptor_pb2
    from smg_grpc_proto.generated import common_pb2, vllm_engine_pb2, vllm_engine_pb2_grpc
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

SERVER = sys.argv.pop(1)
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/testing"))
import chat_model  # noqa: E402

ANSWER = "".join(chat_model.ANSWER.values())
TOOLS = [{"type": "function", "function": {
    "name": "get_weather", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}}}}}]
SESSION = "x-session-id"
LOOP = len(chat_model.ANSWER) + 1  # tokens until an answer begins again
LONG = 300 * LOOP  # a stream of hundreds of steps
PATIENCE = 60  # seconds, for what takes a fraction of one

for name in ("http_proxy", "https_proxy", "all_proxy"):
    os.environ.pop(name, None)
    os.environ.pop(name.upper(), None)


def wait_for(condition, what):
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(what)
        time.sleep(0.02)


def free_ports(count):
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


class Server:
    def __init__(self, model, *flags):
        # The sanitizers' options come with the environment.
        self.process = subprocess.Popen(
            [SERVER, "--model", str(model), "--device", "cpu", "--grpc-port", "0",
             "--http-port", "0", "--kv-pages", "8192", *flags],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env={**os.environ, "RECURVE_NUM_THREADS": "1"})
        self.http, self.grpc = (
            re.fullmatch(rf"listening {name}=(.+)\n", self.process.stdout.readline())[1]
            for name in ("http", "grpc"))

    def metric(self, name):
        with urllib.request.urlopen(f"http://{self.http}/metrics", timeout=PATIENCE) as answer:
            found = re.findall(rf"^{name}(?:{{.*}})? (\S+)$", answer.read().decode(), re.M)
        return sum(map(float, found))

    def stop(self, how=signal.SIGTERM):
        if self.process.returncode is None:
            self.process.send_signal(how)
        status = self.process.wait(timeout=PATIENCE)
        self.process.stdout.close()
        return status


class Gateway:
    """smg in front of servers, from a folder of its own: it looks for tokenizers where it is."""

    def __init__(self, folder, servers, *flags):
        port, metrics = free_ports(2)
        self.url = f"http://127.0.0.1:{port}"
        self.log = open(Path(folder) / "smg.log", "w+")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "smg", "launch", "--host", "127.0.0.1", "--port", str(port),
             "--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics),
             "--worker-urls", *(f"grpc://{server.grpc}" for server in servers),
             "--policy", "cache_aware", "--tool-call-parser", "qwen",
             "--worker-startup-check-interval", "1", "--health-check-interval-secs", "1",
             "--shutdown-grace-period-secs", "1", *flags],
            cwd=folder, stdout=self.log, stderr=subprocess.STDOUT)
        wait_for(lambda: self.healthy() == len(servers), "the gateway has no workers")
        self.client = openai.OpenAI(base_url=self.url + "/v1", api_key="none", max_retries=0,
                                    timeout=PATIENCE)

    def healthy(self):
        if self.process.poll() is not None:
            self.log.seek(0)
            raise RuntimeError(f"smg ended: {self.log.read()[-2000:]}")
        try:
            with urllib.request.urlopen(self.url + "/readiness", timeout=PATIENCE) as answer:
                return json.load(answer)["healthy_workers"]
        except OSError:
            return 0

    def stop(self):
        self.client.close()
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout=PATIENCE)
        finally:
            self.process.kill()
            self.log.close()

    def chat(self, text, **options):
        messages = text if isinstance(text, list) else [{"role": "user", "content": text}]
        return self.client.chat.completions.create(
            **{"model": "chat", "messages": messages, "temperature": 0, **options})

    def worker_of(self, text, **options):
        """The address of the server that answered."""
        raw = self.client.chat.completions.with_raw_response.create(
            model="chat", messages=[{"role": "user", "content": text}], temperature=0, **options)
        return raw.headers["x-smg-routed-worker-id"].removeprefix("grpc://")


class Fleet(unittest.TestCase):
    """Servers on one chat model behind a gateway, for all tests of a class."""

    SERVERS = 2
    MODEL = {}
    FLAGS = ()

    @classmethod
    def setUpClass(cls):
        folder = Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.model = folder / "chat"
        chat_model.write_chat_model(cls.model, **cls.MODEL)
        cls.folder = folder / "gateway"
        cls.folder.mkdir()
        cls.servers = []
        cls.addClassCleanup(lambda: [server.stop(signal.SIGKILL) for server in cls.servers])
        for _ in range(cls.SERVERS):
            cls.servers.append(Server(cls.model))
        cls.gateway = Gateway(cls.folder, cls.servers, *cls.FLAGS)
        cls.addClassCleanup(cls.gateway.stop)


class GatewayTest(Fleet):
    FLAGS = ("--sticky-sessions", "--routing-key-headers", SESSION,
             "--assignment-mode", "min_group")

    def test_chat(self):
        self.assertEqual(["chat"], [model.id for model in self.gateway.client.models.list()])
        answer = self.gateway.chat("Hello?")
        self.assertEqual((ANSWER, "stop"),
                         (answer.choices[0].message.content, answer.choices[0].finish_reason))
        self.assertEqual(LOOP, answer.usage.completion_tokens)
        answer = self.gateway.chat("Hello?", max_tokens=2, n=2, logprobs=True, top_logprobs=3)
        self.assertEqual([0, 1], [choice.index for choice in answer.choices])
        for choice in answer.choices:
            self.assertEqual("length", choice.finish_reason)
            self.assertEqual(["Hello", ", "], [one.token for one in choice.logprobs.content])
            for one in choice.logprobs.content:
                self.assertEqual((one.token, one.logprob),
                                 (one.top_logprobs[0].token, one.top_logprobs[0].logprob))
                self.assertGreater(one.logprob, -0.01)
                self.assertEqual(3, len(one.top_logprobs))
        self.assertEqual("Hello, ",
                         self.gateway.chat("Hello?", stop=["world"]).choices[0].message.content)

    def test_streams(self):
        text, usage, reason = "", None, None
        for event in self.gateway.chat("Stream.", stream=True,
                                       stream_options={"include_usage": True}):
            usage = event.usage or usage
            for choice in event.choices:
                text += choice.delta.content or ""
                reason = choice.finish_reason or reason
        self.assertEqual((ANSWER, "stop", LOOP), (text, reason, usage.completion_tokens))
        self.assertGreater(usage.prompt_tokens, 20)

    def test_tools(self):
        call = self.gateway.chat("Weather?", tools=TOOLS).choices[0]
        self.assertEqual("tool_calls", call.finish_reason)
        function = call.message.tool_calls[0].function
        self.assertEqual(("get_weather", {"city": "Paris"}),
                         (function.name, json.loads(function.arguments)))
        name, arguments = "", ""
        for event in self.gateway.chat("Weather?", tools=TOOLS, stream=True):
            for choice in event.choices:
                for part in choice.delta.tool_calls or []:
                    name += part.function.name or ""
                    arguments += part.function.arguments or ""
        self.assertEqual(("get_weather", {"city": "Paris"}), (name, json.loads(arguments)))

    def test_a_closed_stream_ends_its_request(self):
        stream = self.gateway.chat("Go on.", stream=True, max_tokens=LONG,
                                   extra_body={"ignore_eos": True})
        next(iter(stream))
        stream.close()
        wait_for(lambda: sum(server.metric("recurve_num_requests_running")
                             for server in self.servers) == 0, "a request runs on")

    def test_errors_name_the_field(self):
        def message_of(**options):
            with self.assertRaises(openai.BadRequestError) as caught:
                self.gateway.chat("Hello?", **options)
            return caught.exception.message

        self.assertIn("sampling_params.max_tokens is 70000", message_of(max_tokens=70000))
        self.assertIn("sampling_params.json_schema is set",
                      message_of(response_format={"type": "json_object"}))
        self.assertIn("sampling_params.json_schema is set",
                      message_of(tools=TOOLS, tool_choice="required"))

    def test_a_session_stays_where_it_began(self):
        workers = set()
        for session in range(8):
            at = {self.gateway.worker_of(f"{turn}, of its own", max_tokens=1,
                                         extra_headers={SESSION: f"session-{session}"})
                  for turn in range(4)}
            self.assertEqual(1, len(at), at)
            workers |= at
        self.assertEqual({server.grpc for server in self.servers}, workers)


class ServiceTest(Fleet):
    """What a router sees, without the gateway."""

    SERVERS = 1

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.channel = grpc.insecure_channel(cls.servers[0].grpc)
        cls.addClassCleanup(cls.channel.close)
        cls.stub = vllm_engine_pb2_grpc.VllmEngineStub(cls.channel)

    def test_the_interface_is_the_published_one(self):
        protoc = shutil.which("protoc")
        if protoc is None:
            self.skipTest("protoc is missing")
        with tempfile.NamedTemporaryFile() as out:
            subprocess.run([protoc, "-I", ROOT / "proto", f"--descriptor_set_out={out.name}",
                            "smg/grpc/common.proto", "vllm/grpc/engine.proto"], check=True)
            ours = descriptor_pb2.FileDescriptorSet.FromString(out.read())
        messages = 0
        for file, module in zip(ours.file, (common_pb2, vllm_engine_pb2), strict=True):
            published = descriptor_pb2.FileDescriptorProto()
            module.DESCRIPTOR.CopyToProto(published)
            self.assertEqual(published.package, file.package)
            theirs = {message.name: message for message in published.message_type}
            for message in file.message_type:
                messages += 1
                fields = {field.name: field for field in theirs[message.name].field}
                for field in message.field:
                    other = fields[field.name]
                    for part in ("number", "type", "label", "type_name", "proto3_optional"):
                        self.assertEqual(getattr(other, part), getattr(field, part),
                                         f"{part} of {message.name}.{field.name}")
            methods = {method.name: method for service in published.service
                       for method in service.method}
            for service in file.service:
                for method in service.method:
                    for part in ("input_type", "output_type", "client_streaming",
                                 "server_streaming"):
                        self.assertEqual(getattr(methods[method.name], part),
                                         getattr(method, part), method.name)
        self.assertGreater(messages, 20)

    def test_the_tokenizer_is_that_of_the_checkpoint(self):
        import hashlib
        import io
        import zipfile
        chunks = list(self.stub.GetTokenizer(common_pb2.GetTokenizerRequest()))
        self.assertEqual([""] * (len(chunks) - 1), [chunk.sha256 for chunk in chunks[:-1]])
        data = b"".join(chunk.data for chunk in chunks)
        self.assertEqual(hashlib.sha256(data).hexdigest(), chunks[-1].sha256)
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            self.assertIsNone(archive.testzip())
            self.assertEqual(["config.json", "tokenizer.json", "tokenizer_config.json"],
                             archive.namelist())
            for name in archive.namelist():
                self.assertEqual((self.model / name).read_bytes(), archive.read(name))

    def test_what_the_server_says_of_itself_is_true(self):
        model = self.stub.GetModelInfo(vllm_engine_pb2.GetModelInfoRequest())
        self.assertEqual(
            ("chat", "recurve", ["RecurveForCausalLM"], 320, 65536, [258], 256, 256, True),
            (model.served_model_name, model.model_type, list(model.architectures),
             model.vocab_size, model.max_context_length, list(model.eos_token_ids),
             model.bos_token_id, model.pad_token_id, model.is_generation))
        before = time.time()
        request = vllm_engine_pb2.GenerateRequest(
            request_id="one", stream=True,
            tokenized=vllm_engine_pb2.TokenizedInput(input_ids=[65] * 64),
            sampling_params=vllm_engine_pb2.SamplingParams(
                max_tokens=LONG, ignore_eos=True, temperature=0))
        call = self.stub.Generate(request)
        next(call)

        def load_now():
            return self.stub.GetLoads(vllm_engine_pb2.GetLoadsRequest()).loads[0]

        wait_for(lambda: load_now().num_running_reqs == 1, "no load shows")
        load = load_now()
        self.assertEqual((1, 0, 1), (load.num_running_reqs, load.num_waiting_reqs,
                                     load.num_total_reqs))
        self.assertGreaterEqual(load.num_used_tokens, 64)
        self.assertEqual(8192 * 64, load.max_total_num_tokens)
        self.assertGreater(load.token_usage, 0)
        info = self.stub.GetServerInfo(vllm_engine_pb2.GetServerInfoRequest())
        self.assertEqual((1, False, 1, 64), (info.active_requests, info.is_paused,
                                             info.data_parallel_size, info.block_size))
        self.assertGreaterEqual(info.last_receive_timestamp, before - 1)
        self.assertEqual(info.max_num_seqs, load.max_running_requests)
        # Abort ends it, whichever of the two sees that first.
        self.stub.Abort(vllm_engine_pb2.AbortRequest(request_ids=["none", "one"]))
        with self.assertRaises(grpc.RpcError) as caught:
            for _ in call:
                pass
        self.assertEqual(grpc.StatusCode.CANCELLED, caught.exception.code())
        self.assertEqual("Abort named the request", caught.exception.details())
        wait_for(lambda: self.servers[0].metric("recurve_num_requests_running") == 0,
                 "the request runs on")

    def test_what_it_does_not_have_is_unimplemented(self):
        def status_of(method):
            with self.assertRaises(grpc.RpcError) as caught:
                self.channel.unary_unary(method)(b"", timeout=PATIENCE)
            return caught.exception

        for method in ("/sglang.grpc.scheduler.SglangScheduler/HealthCheck",
                       "/vllm.grpc.engine.VllmEngine/Embed",
                       "/vllm.grpc.engine.VllmEngine/FlushCache",
                       "/vllm.grpc.engine.VllmEngine/SubscribeKvEvents"):
            self.assertEqual(grpc.StatusCode.UNIMPLEMENTED, status_of(method).code(), method)
        self.assertIn("publishes no KV events",
                      status_of("/vllm.grpc.engine.VllmEngine/SubscribeKvEvents").details())

    def test_session_headers_are_harmless(self):
        """To the server itself, over both transports."""
        values = {SESSION: "a" * 64, "x-session-token": "MTI3LjAuMC4xOjUwMDUx"}
        request = urllib.request.Request(
            f"http://{self.servers[0].http}/v1/completions",
            json.dumps({"model": "chat", "prompt": "<|answer|>", "temperature": 0}).encode(),
            {"content-type": "application/json", **values})
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            self.assertEqual(ANSWER, json.load(answer)["choices"][0]["text"])
        request = vllm_engine_pb2.GenerateRequest(
            text="<|answer|>", sampling_params=vllm_engine_pb2.SamplingParams(temperature=0))
        responses = list(self.stub.Generate(request, metadata=list(values.items())))
        self.assertEqual([[*chat_model.ANSWER, chat_model.IM_END]],
                         [list(response.complete.output_ids) for response in responses])
        self.assertEqual("stop", responses[0].complete.finish_reason)


class HitsTest(Fleet):
    @staticmethod
    def conversations(gateway):
        """Cached tokens in all of 12 conversations of 5 turns, 4 of them at a time."""
        def talk(number):
            messages = [{"role": "system", "content": f"{number} is your name; be terse."}]
            cached = 0
            for turn in range(5):
                messages.append({"role": "user", "content": f"[{number}.{turn}] " +
                                 "A question that goes on for a while. " * 4})
                answer = gateway.chat(messages)
                cached += answer.usage.prompt_tokens_details.cached_tokens
                messages.append({"role": "assistant",
                                 "content": answer.choices[0].message.content})
            return cached

        with ThreadPoolExecutor(4) as pool:
            return sum(pool.map(talk, range(12)))

    def test_two_hit_as_one(self):
        with contextlib.ExitStack() as stack:
            alone = Server(self.model)
            stack.callback(alone.stop)
            (self.folder / "alone").mkdir()
            gateway = Gateway(self.folder / "alone", [alone])
            stack.callback(gateway.stop)
            one = self.conversations(gateway)
        two = self.conversations(self.gateway)
        self.assertGreater(one, 10000)
        self.assertGreaterEqual(two, 0.9 * one)
        # Both serve, and the answers say what the servers count.
        hits = [server.metric("recurve_prefix_cache_hit_tokens_total")
                for server in self.servers]
        self.assertEqual(two, sum(hits))
        self.assertGreater(min(hits), 0)


class StreamsFleet(Fleet):
    MODEL = {"layers": 8, "inner": 1024}  # steps of milliseconds
    WHOLE = (ANSWER * (LONG // LOOP), "length")

    def open_streams(self, count):
        """Streams on both servers that have begun, with the addresses of their servers."""
        streams = []
        for number in range(count):
            raw = self.gateway.client.chat.completions.with_raw_response.create(
                model="chat", messages=[{"role": "user", "content": f"{number} goes on"}],
                temperature=0, max_tokens=LONG, stream=True,
                extra_body={"ignore_eos": True},
                extra_headers={SESSION: f"{number}"})
            events = iter(raw.parse())
            next(events)
            streams.append((raw.headers["x-smg-routed-worker-id"].removeprefix("grpc://"),
                            events))
        for server in self.servers:
            running = sum(address == server.grpc for address, _ in streams)
            self.assertGreater(running, 0, "a server has no stream")
            wait_for(lambda: server.metric("recurve_num_requests_running") == running,
                     "streams have not begun, or have ended")
        return streams

    @staticmethod
    def read(streams):
        """How each stream ended: its text and finish reason, or None after an error."""
        ends = [None] * len(streams)

        def run(number, events):
            text, reason = "", None
            try:
                for event in events:
                    for choice in event.choices:
                        text += choice.delta.content or ""
                        reason = choice.finish_reason or reason
            except Exception:  # what a broken stream raises is the client's affair
                return
            ends[number] = (text, reason)

        threads = [threading.Thread(target=run, args=(number, events))
                   for number, (_, events) in enumerate(streams)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return ends

    def expect_served_by(self, server):
        for number in range(4):
            self.assertEqual(ANSWER, self.gateway.chat(f"{number}?").choices[0].message.content)
        self.assertEqual({server.grpc}, {self.gateway.worker_of(f"{i}!") for i in range(4)})


class DrainTest(StreamsFleet):
    FLAGS = GatewayTest.FLAGS

    def test_a_drain_loses_no_stream(self):
        streams = self.open_streams(6)
        leaving, staying = self.servers
        leaving.process.send_signal(signal.SIGTERM)
        wait_for(lambda: leaving.metric("recurve_serving") == 0, "it does not drain")
        self.assertGreater(leaving.metric("recurve_num_requests_running"), 0)
        # New requests are answered by the other, also before the gateway has noticed.
        self.expect_served_by(staying)
        self.assertEqual([self.WHOLE] * 6, self.read(streams))
        self.assertEqual(0, leaving.process.wait(timeout=PATIENCE))
        self.expect_served_by(staying)


class KillTest(StreamsFleet):
    FLAGS = GatewayTest.FLAGS

    def test_a_kill_loses_only_its_own(self):
        streams = self.open_streams(6)
        killed, staying = self.servers
        killed.stop(signal.SIGKILL)
        for (address, _), end in zip(streams, self.read(streams)):
            if address == staying.grpc:
                self.assertEqual(self.WHOLE, end)
            else:
                self.assertNotEqual(self.WHOLE, end)
        self.expect_served_by(staying)


if __name__ == "__main__":
    unittest.main()
