#!/usr/bin/env python3
"""Chat next to completions of the same tokens, on one server: what the template costs.

    bench/chat.py build/cpu/bin/recurve-server MODEL [--streams 64] [--python PYTHON]

MODEL is a checkpoint with a chat template. First, in turns, the time to the first token of a
chat and of the completion whose prompt is the ids that the chat is rendered to; medians. Then,
in turns, `streams` streams at a time of each; tokens a second. Needs httpx.
"""

import argparse
import re
import statistics
import subprocess
import sys
import threading
import time

import httpx


def start(options):
    server = subprocess.Popen(
        [options.server, "--model", options.model, "--grpc-port", "0", "--http-port", "0",
         "--max-num-seqs", str(options.streams), "--prefix-cache", "off",
         "--chat-python", options.python], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True)
    url = "http://" + re.fullmatch(r"listening http=(.+)\n", server.stdout.readline())[1]
    server.stdout.readline()
    return server, url


def first_token(client, path, body):
    begin = time.perf_counter()
    with client.stream("POST", path, json={**body, "stream": True}) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                return time.perf_counter() - begin
    raise RuntimeError("no output")


def throughput(url, path, bodies):
    counts = []

    def run(body):
        with httpx.Client(base_url=url, timeout=600) as client:
            counts.append(client.post(path, json=body).json()["usage"]["completion_tokens"])

    threads = [threading.Thread(target=run, args=(body,)) for body in bodies]
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - begin)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("server")
    parser.add_argument("model")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=256, help="of a stream")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--python", default=sys.executable)
    options = parser.parse_args()
    server, url = start(options)
    try:
        chat, completion = "/v1/chat/completions", "/v1/completions"
        with httpx.Client(base_url=url, timeout=600) as client:
            def pair(text, **body):
                messages = [{"role": "system", "content": "You are helpful."},
                            {"role": "user", "content": text}]
                body = {"temperature": 0, "ignore_eos": True, **body}
                rendered = client.post(chat + "/render", json={**body, "messages": messages})
                rendered.raise_for_status()
                return ({**body, "messages": messages},
                        {**body, "prompt": rendered.json()["token_ids"]})

            pairs = [pair(f"{i}: tell me about rivers", max_tokens=2)
                     for i in range(options.rounds)]
            times = {chat: [], completion: []}
            for bodies in pairs:
                for path, body in zip(times, bodies):
                    times[path].append(first_token(client, path, body))
            for path, values in times.items():
                print(f"{path}: first token {1e3 * statistics.median(values):.2f} ms")
            pairs = [pair(f"{i}: tell me about lakes", max_tokens=options.tokens)
                     for i in range(options.streams)]
        for _ in range(3):
            for path, bodies in zip((chat, completion), zip(*pairs)):
                print(f"{path}: {throughput(url, path, bodies):.0f} tokens/s")
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
