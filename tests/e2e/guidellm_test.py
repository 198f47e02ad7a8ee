#!/usr/bin/env python3
"""The load tool guidellm against a server, with its defaults. Argument: the program recurve-server.

Exit status 77, and a line that says why, where the package or one that it needs is missing."""

import contextlib
import http.client
import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.request
from pathlib import Path

sys.dont_write_bytecode = True
for package in ("guidellm", "tokenizers", "torch"):
    if importlib.util.find_spec(package) is None:
        print(f"skipped: the package {package} is not installed")
        sys.exit(77)
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

SERVER = sys.argv.pop(1)
ROOT = Path(__file__).resolve().parents[2]
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
DEADLINE = 600  # seconds that anything may take on a busy machine
PROMPT, OUTPUT = 40, 12  # tokens
STREAMS, REQUESTS = 6, 12


def environment(folder):
    """Without proxies, and without anything from outside."""
    kept = {name: value for name, value in os.environ.items()
            if not name.lower().endswith("_proxy")}
    return {**kept, "HF_HOME": folder, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1",
            "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}


class Holder:
    """Holds the one place of a server: prompts that go first and take a minute, or more."""

    def __init__(self, server):
        self.answer = server.stream(prompt=["a"] * 64, max_tokens=8000, priority=-100)
        self.socket = socket.socket(fileno=os.dup(self.answer.fileno()))
        # A sequence whose client does not read gives its place to others.
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        with contextlib.suppress(OSError, http.client.HTTPException):
            while self.answer.read1(1 << 20):
                pass

    def release(self):
        with contextlib.suppress(OSError):  # it was released before
            self.socket.shutdown(socket.SHUT_RDWR)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.release()
        self.reader.join()
        self.socket.close()
        self.answer.close()


def write_tokenizer(folder):
    """The demo model's tokenizer, a token for each byte, as transformers reads it."""
    printed = [*range(0x21, 0x7f), *range(0xa1, 0xad), *range(0xae, 0x100)]
    others = (byte for byte in range(256) if byte not in printed)
    names = {byte: chr(byte) for byte in printed}
    names.update((byte, chr(256 + i)) for i, byte in enumerate(others))
    tokenizer = Tokenizer(models.BPE({name: byte for byte, name in names.items()}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(Path(folder) / "tokenizer.json"))
    (Path(folder) / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 8192}))


class Server:
    def __init__(self, *flags):
        self.process = subprocess.Popen(
            [SERVER, "--model", str(ROOT / "deploy/models/demo"), "--device", "cpu",
             "--grpc-port", "0", "--http-port", "0", *flags],
            stdout=subprocess.PIPE, text=True, env={**os.environ, "RECURVE_NUM_THREADS": "1"})
        line = self.process.stdout.readline()
        self.address = re.fullmatch(r"listening http=(.+)\n", line)[1]
        self.process.stdout.readline()  # gRPC: it is up

    def waiting(self):
        with DIRECT.open(f"http://{self.address}/metrics", timeout=DEADLINE) as answer:
            return float(re.search(r"^recurve_num_requests_waiting ([0-9.]+)$",
                                   answer.read().decode(), re.MULTILINE)[1])

    def stream(self, **body):
        request = urllib.request.Request(
            f"http://{self.address}/v1/completions",
            json.dumps({"ignore_eos": True, "stream": True, **body}).encode(),
            {"Content-Type": "application/json"})
        return DIRECT.open(request, timeout=DEADLINE)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(timeout=120)
        self.process.stdout.close()
        return status


class Run:
    """One run of the tool, with options of how it asks the server."""

    def __init__(self, server, options=",request_format=/v1/completions"):
        self.folder = tempfile.TemporaryDirectory()
        write_tokenizer(self.folder.name)
        self.report = Path(self.folder.name) / "report.json"
        self.log = open(Path(self.folder.name) / "log", "w+")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "guidellm", "run",
             "--backend", f"kind=openai_http,target=http://{server.address}{options}",
             "--profile", f"kind=concurrent,streams={STREAMS}",
             "--constraint", f"kind=max_requests,count={REQUESTS}",
             "--tokenizer", f"kind=huggingface_auto,model={self.folder.name}",
             "--data", f"kind=synthetic_text,prompt_tokens={PROMPT},output_tokens={OUTPUT}",
             "--output", f"kind=json,path={self.report}", "--disable-console"],
            stdout=self.log, stderr=self.log, env=environment(self.folder.name))

    def text(self):
        self.log.seek(0)
        return self.log.read()

    def benchmark(self):
        """Its report, after its end."""
        if self.process.wait(timeout=DEADLINE) != 0:
            raise AssertionError(self.text())
        [benchmark] = json.loads(self.report.read_text())["benchmarks"]
        return benchmark

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()  # if something failed before its end
        self.process.wait()
        self.log.close()
        self.folder.cleanup()


class GuidellmTest(unittest.TestCase):
    def start(self, *flags):
        server = Server(*flags)
        self.addCleanup(lambda: self.assertEqual(0, server.stop()))
        return server

    def check_all_succeeded(self, benchmark, around=1, waits=False):
        """`around`: tokens that the server puts around a prompt: the beginning of sequence, or
        what a chat template has. `waits`: there may be comments."""
        requests = benchmark["requests"]
        self.assertEqual([], [one["info"]["error"] for one in requests["errored"]])
        self.assertEqual([], requests["incomplete"])
        self.assertEqual(REQUESTS, len(requests["successful"]))
        for one in requests["successful"]:
            # What it sends by default, and what it understood of the answer.
            body = json.loads(one["request_args"])["body"]
            self.assertTrue(body["stream_options"]["continuous_usage_stats"])
            self.assertTrue(body["ignore_eos"])
            self.assertEqual("demo", body["model"])  # as /v1/models has it
            self.assertRegex(one["response_id"], "^(chat)?cmpl-")
            self.assertEqual((PROMPT + around, OUTPUT),
                             (one["prompt_tokens"], one["output_tokens"]))
            self.assertTrue(one["output"])
            self.assertGreaterEqual(one["info"]["timings"]["token_iterations"], 1)
            if not waits:  # with the role, the end, the usage and "[DONE]"
                self.assertLessEqual(one["info"]["timings"]["request_iterations"], OUTPUT + 4)

    def test_completions(self):
        with Run(self.start()) as run:
            self.check_all_succeeded(run.benchmark())

    def test_chat_which_is_the_default(self):
        with tempfile.NamedTemporaryFile("w", suffix=".jinja") as template:
            template.write("{% for message in messages %}{{ message.role }}: "
                           "{{ message.content }}\n{% endfor %}assistant: ")
            template.flush()
            server = self.start("--chat-template", template.name, "--chat-python", sys.executable)
            with Run(server, options="") as run:
                self.check_all_succeeded(run.benchmark(), len("user: \nassistant: "))

    def test_comments_while_requests_wait(self):
        server = self.start("--max-num-seqs", "1", "--http-stream-ping", "0.1")
        with Holder(server) as holder:
            others = server.waiting()
            with Run(server) as run:
                while server.waiting() < others + STREAMS:
                    self.assertIsNone(run.process.poll(), run.text())
                    time.sleep(0.05)
                with server.stream(prompt="a", max_tokens=1) as last:
                    # By its second comment each of the others has had one.
                    comments = 0
                    while comments < 2:
                        comments += last.readline().startswith(b":")
                    holder.release()
                    self.assertIn(b"data: ", last.read())
                self.check_all_succeeded(run.benchmark(), waits=True)


if __name__ == "__main__":
    unittest.main()
