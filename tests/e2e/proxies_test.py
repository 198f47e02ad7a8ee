#!/usr/bin/env python3
"""The server behind nginx and HAProxy, configured as docs/proxies.md says, and under HTTP clients
of Python. Arguments: the programs recurve-server and recurve-client.

What is missing here, program or package, is skipped with a line. Exit status 77 where all is."""

import contextlib
import importlib.util
import json
import os
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
from pathlib import Path

sys.dont_write_bytecode = True
SERVER, CLIENT = sys.argv[1:3]
del sys.argv[1:3]
ROOT = Path(__file__).resolve().parents[2]
DEADLINE = 120  # seconds that anything may take on a busy machine
NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
HAPROXY = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin")
PROXY_TIMEOUT = 3  # seconds of silence after which a proxy gives an answer up
PING = b": waiting\n\n"

NGINX_CONFIG = """
daemon off;
master_process off;
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 256; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  upstream recurve_http {{ server {http}; keepalive 16; }}
  upstream recurve_grpc {{ server {grpc}; keepalive 16; }}
  server {{
    listen 127.0.0.1:{http_port};
    location / {{
      proxy_pass http://recurve_http;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_read_timeout {timeout}s;
      proxy_next_upstream off;
      gzip on;
      gzip_proxied any;
      gzip_types application/json;
    }}
  }}
  server {{
    listen 127.0.0.1:{grpc_port} http2;
    location / {{
      grpc_pass grpc://recurve_grpc;
      grpc_read_timeout 1h;
      grpc_send_timeout 1h;
      client_body_timeout 1h;
      grpc_next_upstream off;
    }}
  }}
}}
"""

HAPROXY_CONFIG = """
global
  maxconn 256
defaults
  mode http
  retries 0
  timeout connect 5s
  timeout client {timeout}s
  timeout server {timeout}s
frontend http_in
  bind 127.0.0.1:{http_port}
  default_backend recurve_http
backend recurve_http
  http-reuse always
  compression algo gzip
  compression type text/event-stream application/json
  server recurve {http}
frontend grpc_in
  bind 127.0.0.1:{grpc_port} proto h2
  timeout client 1h
  default_backend recurve_grpc
backend recurve_grpc
  timeout server 1h
  server recurve {grpc} proto h2
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(condition, what):
    end = time.monotonic() + DEADLINE
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"waited {DEADLINE} s for {what}")
        time.sleep(0.02)


def accepts(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Server:
    """One sequence at a time, and others in the queue."""

    def __init__(self, ping):
        self.process = subprocess.Popen(
            [SERVER, "--model", str(ROOT / "deploy/models/demo"), "--device", "cpu",
             "--grpc-port", "0", "--http-port", "0", "--max-num-seqs", "1",
             "--http-stream-ping", ping],
            stdout=subprocess.PIPE, text=True, env={**os.environ, "RECURVE_NUM_THREADS": "1"})
        self.http = self.process.stdout.readline().split("=")[1].strip()
        self.grpc = self.process.stdout.readline().split("=")[1].strip()
        self.port = int(self.http.split(":")[1])

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(timeout=DEADLINE)
        self.process.stdout.close()
        return status


class Proxy:
    def __init__(self, server, program, config):
        self.folder = tempfile.mkdtemp()
        self.http_port, self.grpc_port = free_port(), free_port()
        path = Path(self.folder) / "config"
        path.write_text(config.format(
            folder=self.folder, http=server.http, grpc=server.grpc, http_port=self.http_port,
            grpc_port=self.grpc_port, timeout=PROXY_TIMEOUT))
        command = {"nginx": [program, "-p", self.folder, "-e", "stderr", "-c", str(path)],
                   "haproxy": [program, "-db", "-f", str(path)]}[Path(program).name]
        self.log = open(Path(self.folder) / "log", "w")
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)
        for port in (self.http_port, self.grpc_port):
            wait_for(lambda port=port: accepts(port) or self.process.poll() is not None,
                     f"{program} to listen")
        if self.process.poll() is not None:
            raise AssertionError((Path(self.folder) / "log").read_text())

    def stop(self):
        self.process.terminate()
        self.process.wait(timeout=DEADLINE)
        self.log.close()
        shutil.rmtree(self.folder)


def post(body):
    text = json.dumps(body)
    return (f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(text)}\r\n\r\n{text}").encode()


def read_until(connection, what, text=b""):
    while what not in text:
        more = connection.recv(65536)
        if not more:
            raise AssertionError(f"the connection ended, and there was no {what} in {text}")
        text += more
    return text


class Holder:
    """Holds the one place of a server: prompts that go first and take a minute, or more."""

    def __init__(self, server):
        self.connection = socket.create_connection(("127.0.0.1", server.port), DEADLINE)
        self.connection.sendall(post({"prompt": ["a"] * 64, "max_tokens": 8000, "priority": -100,
                                      "ignore_eos": True, "stream": True}))
        read_until(self.connection, b"data: ")
        # A sequence whose client does not read gives its place to others.
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        with contextlib.suppress(ConnectionResetError):
            while self.connection.recv(1 << 20):
                pass

    def release(self):
        with contextlib.suppress(OSError):  # it was released before
            self.connection.shutdown(socket.SHUT_RDWR)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.release()
        self.reader.join()
        self.connection.close()


SHORT = {"prompt": "a", "max_tokens": 3, "ignore_eos": True, "stream": True}


class BehindAProxy:
    program = None
    config = None

    @classmethod
    def setUpClass(cls):
        if cls.program is None:
            raise unittest.SkipTest(f"{cls.__name__}: the program is not installed")
        cls.server = Server(ping="1")
        cls.proxy = Proxy(cls.server, cls.program, cls.config)

    @classmethod
    def tearDownClass(cls):
        cls.proxy.stop()
        assert cls.server.stop() == 0

    def connect(self):
        connection = socket.create_connection(("127.0.0.1", self.proxy.http_port), DEADLINE)
        self.addCleanup(connection.close)
        return connection

    def test_a_queued_stream_outlives_the_read_timeout_and_comes_in_pieces(self):
        with Holder(self.server):
            connection = self.connect()
            began = time.monotonic()
            connection.sendall(post(SHORT))
            text = read_until(connection, b"\r\n\r\n")
            self.assertTrue(text.startswith(b"HTTP/1.1 200"), text)
            while time.monotonic() < began + PROXY_TIMEOUT + 1:
                text = read_until(connection, PING, text)
                self.assertNotIn(b"data:", text)
                text = text[text.index(PING) + len(PING):]
        text = read_until(connection, b"data: [DONE]", text)
        self.assertIn(b'"finish_reason":"length"', text)

    def test_the_head_is_passed_on_before_there_is_anything_else(self):
        # A proxy that buffers waits for the first ping. So may an unlucky reader, but not always.
        def comes_alone():
            connection = self.connect()
            connection.sendall(post(SHORT))
            return read_until(connection, b"\r\n\r\n").endswith(b"\r\n\r\n")

        with Holder(self.server):
            self.assertTrue(any(comes_alone() for _ in range(5)))

    def test_answers_of_one_connection_reuse_one_of_the_server(self):
        def peers():  # of the server's HTTP port
            lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
            return {remote for _, local, remote, state, *_ in map(str.split, lines)
                    if int(local.split(":")[1], 16) == self.server.port and state == "01"}

        before = peers()  # of other tests: HAProxy may take one of these up, or not
        connection = self.connect()
        seen = set()
        for _ in range(20):
            connection.sendall(post({**SHORT, "stream": False}))
            text = read_until(connection, b"\r\n\r\n")
            self.assertTrue(text.startswith(b"HTTP/1.1 200"), text)
            read_until(connection, b'"usage"', text)
            connection.sendall(post(SHORT))
            read_until(connection, b"0\r\n\r\n")
            seen |= peers()
        self.assertTrue(seen)
        self.assertLessEqual(len(seen - before), 1, (before, seen))

    def test_a_compressor_leaves_streams_as_they_are(self):
        def head_of(body):
            connection = self.connect()
            head, _, rest = post(body).partition(b"\r\n")
            connection.sendall(head + b"\r\nAccept-Encoding: gzip\r\n" + rest)
            head, _, rest = read_until(connection, b"\r\n\r\n").partition(b"\r\n\r\n")
            return head.lower(), lambda what: read_until(connection, what, rest)

        head, until = head_of(SHORT)
        self.assertNotIn(b"content-encoding", head)
        self.assertIn(b"cache-control: no-cache, no-transform", head)
        until(b"data: [DONE]")
        head, _ = head_of({**SHORT, "stream": False, "prompt": ["a"] * 8})
        self.assertIn(b"content-encoding: gzip", head)  # it does compress

    def test_refusals_keep_their_status(self):
        for body, status in (({**SHORT, "colour": 1}, b"400"), ({**SHORT, "model": "x"}, b"404")):
            connection = self.connect()
            connection.sendall(post(body))
            self.assertTrue(
                read_until(connection, b"}}").startswith(b"HTTP/1.1 " + status))

    def test_grpc(self):
        def tokens(address):
            done = subprocess.run(
                [CLIENT, "generate", "--server", address, "--prompt", "import os", "--json",
                 "--max-new-tokens", "300", "--ignore-eos"],
                capture_output=True, text=True, timeout=DEADLINE, check=False)
            self.assertEqual(0, done.returncode, done.stderr)
            return json.loads(done.stdout)["token_ids"]

        address = f"127.0.0.1:{self.proxy.grpc_port}"
        self.assertEqual(tokens(self.server.grpc), tokens(address))
        health = subprocess.run([CLIENT, "health", "--server", address], capture_output=True,
                                text=True, timeout=DEADLINE, check=False)
        self.assertEqual("SERVING\n", health.stdout)


class NginxTest(BehindAProxy, unittest.TestCase):
    program, config = NGINX, NGINX_CONFIG


class HaproxyTest(BehindAProxy, unittest.TestCase):
    program, config = HAPROXY, HAPROXY_CONFIG


class ClientsTest(unittest.TestCase):
    """Clients that pass over comments, and see the head of a stream that waits."""

    @classmethod
    def setUpClass(cls):
        for name in ("http_proxy", "https_proxy", "all_proxy"):
            os.environ.pop(name, None)
            os.environ.pop(name.upper(), None)
        cls.server = Server(ping="0.1")
        cls.url = f"http://{cls.server.http}/v1/completions"

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0

    def need(self, package):
        if importlib.util.find_spec(package) is None:
            self.skipTest(f"the package {package} is not installed")

    def check_lines(self, lines, holder):
        """Ends what holds the place as soon as there was a ping."""
        data = []
        for line in lines:
            if line == PING.decode().strip():
                holder.release()
            elif line.startswith("data: "):
                data.append(line[len("data: "):])
            else:
                self.assertEqual("", line)
        self.assertEqual("[DONE]", data[-1])
        self.assertEqual("length", json.loads(data[-2])["choices"][0]["finish_reason"])

    def test_urllib(self):
        with Holder(self.server) as holder:
            request = urllib.request.Request(
                self.url, json.dumps(SHORT).encode(), {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=DEADLINE) as answer:
                self.check_lines((line.decode().rstrip("\n") for line in answer), holder)

    def test_requests(self):
        self.need("requests")
        import requests
        with Holder(self.server) as holder, requests.post(
                self.url, json=SHORT, stream=True, timeout=DEADLINE) as answer:
            self.assertEqual(200, answer.status_code)
            self.check_lines(answer.iter_lines(chunk_size=1, decode_unicode=True), holder)

    def test_httpx(self):
        self.need("httpx")
        import httpx
        with Holder(self.server) as holder, httpx.stream(
                "POST", self.url, json=SHORT, timeout=DEADLINE) as answer:
            self.assertEqual(200, answer.status_code)
            self.check_lines(answer.iter_lines(), holder)

    def test_openai(self):
        self.need("openai")
        import openai
        with openai.OpenAI(base_url=f"http://{self.server.http}/v1", api_key="none",
                           max_retries=0, timeout=DEADLINE) as client:
            with Holder(self.server) as holder:
                # Returns with the head, while the request waits.
                stream = client.completions.create(
                    model="demo", prompt="a", max_tokens=3, stream=True,
                    extra_body={"ignore_eos": True})
                with socket.create_connection(("127.0.0.1", self.server.port), DEADLINE) as other:
                    # By the first ping of this one, that one has had some, or soon will.
                    other.sendall(post(SHORT))
                    read_until(other, PING)
                holder.release()
                events = list(stream)
            self.assertEqual("length", events[-1].choices[0].finish_reason)
            # An error that comes behind the head is an exception.
            with Holder(self.server):
                stream = client.completions.create(model="demo", prompt="a", max_tokens=3,
                                                   stream=True)
                subprocess.run(
                    [CLIENT, "abort", "--server", self.server.grpc, "--request-id",
                     stream.response.headers["recurve-request-id"]],
                    check=True, capture_output=True, timeout=DEADLINE)
                with self.assertRaises(openai.APIError) as caught:
                    list(stream)
            self.assertEqual("cancelled", caught.exception.code)


if __name__ == "__main__":
    program = unittest.main(exit=False, verbosity=1)
    for test, reason in program.result.skipped:
        print(f"skipped: {test}: {reason}")
    if not program.result.wasSuccessful():
        sys.exit(1)
    sys.exit(77 if program.result.testsRun == len(program.result.skipped) else 0)
