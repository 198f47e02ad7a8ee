#!/usr/bin/env python3
"""What a server does under ten times the load it can bear, when it is told to stop
under load, and when it is killed under load.

    ./dev build cpu recurve-server recurve-overload-client
    tests/e2e/overload.py build/cpu/bin

Ten minutes on two cores, of which two are the overload; not part of ./dev test. It
prints a table of what must hold and ends with status 1 if something does not:
correctness always, times and rates as printed (give it a machine of its own).

  peak       the most tokens a second of completed requests, with as many streams
             open as the server has places
  overload   requests at ten times the rate of the peak, for two minutes. Sender and
             server share the cores; --apart gives each one of its own in every phase,
             so that the goodput is short of the peak by what refusals cost the server
  deadlines  requests at eight times the rate of the peak, of clients that wait five
             seconds, with the default queue: what cannot be done in time is refused
  fairness   two tenants of equal weight: what one gets while the other sends ten times
             the peak
  drain      SIGTERM with places and queue full: every admitted stream is whole
  kill       SIGKILL under load and a new server on the same port; clients send again
             what was refused or cut off, and every request comes to its end
"""

import argparse
import atexit
import collections
import hashlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
PLACES = 32  # --max-num-seqs
QUEUE = 32  # --max-queued-requests: at the peak, about two seconds
OUTPUT_TOKENS = 128
DEADLINE_ROUNDS = 4
FAIR_STREAMS = (1, 16, 40)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def on_core(core, command):
    return command if core is None else ["taskset", "--cpu-list", str(core), *command]


def cpu_seconds(pid):
    """Of a process and all its threads, ended ones too."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# Whatever ends this program early, nothing that it started runs on.
started = []


def start(command, **options):
    process = subprocess.Popen(command, **options)
    started.append(process)
    return process


@atexit.register
def kill_started():
    for process in started:
        if process.poll() is None:
            process.kill()
            process.wait()


class Server:
    core = None  # all of them
    model = ROOT / "deploy/models/demo"

    def __init__(self, programs, port, *flags, queue=QUEUE):
        self.address = f"127.0.0.1:{port}"
        self.process = start(
            on_core(self.core,
                    [programs / "recurve-server", "--model", self.model, "--grpc-port",
                     str(port), "--http-port", "-1", "--max-num-seqs", str(PLACES),
                     "--max-queued-requests", str(queue), "--shutdown-timeout", "45",
                     *map(str, flags)]),
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        while line := self.process.stdout.readline():
            if line.startswith("listening grpc="):
                return
        raise SystemExit(f"the server ended with status {self.process.wait()}")

    def resident_mib(self):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        (line,) = [x for x in status.splitlines() if x.startswith("VmRSS:")]
        return int(line.split()[1]) / 1024

    def end(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        return self.process.wait(timeout=60)


class Client:
    """recurve-overload-client, started and past its runs of single requests."""
    core = None

    def __init__(self, programs, server, *flags):
        self.server = server
        self.process = start(
            on_core(self.core,
                    [programs / "recurve-overload-client", "--server", server.address,
                     "--output-tokens", str(OUTPUT_TOKENS), *map(str, flags)]),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        line = self.process.stderr.readline()
        if line != "ready\n":
            raise SystemExit(f"the client did not start: {line}")
        self.began = time.monotonic()
        self.server_cpu = cpu_seconds(server.process.pid)

    def result(self, timeout):
        out, err = self.process.communicate(timeout=timeout)
        if self.process.returncode != 0:
            raise SystemExit(f"the client ended with status {self.process.returncode}: {err}")
        return json.loads(out)

    def load_result(self, timeout):
        """The same, and the cores that server and client kept busy meanwhile."""
        result = self.result(timeout)
        took = time.monotonic() - self.began
        server = cpu_seconds(self.server.process.pid) - self.server_cpu
        return result | {"cores": f"server {server / took:.2f} cores, client "
                                  f"{result['cpu_seconds'] / took:.2f}"}


checks = []


def check(name, value, holds):
    checks.append(holds)
    print(f"{'ok  ' if holds else 'FAIL'} {name}: {value}", flush=True)


def exact(result):
    check("streams with other tokens than alone", result["different_tokens"],
          result["different_tokens"] == 0)


def codes(result):
    counts = collections.Counter()
    for status, count in result["statuses"].items():
        counts[status.split(":")[0]] += count
    return dict(counts)


def overload(programs, seconds):
    server = Server(programs, free_port())
    Client(programs, server, "--concurrency", PLACES, "--duration", 5).result(120)
    peak = 0

    def measure_peak(streams):
        nonlocal peak
        client = Client(programs, server, "--concurrency", streams, "--duration", 20)
        result = client.load_result(120)
        exact(result)
        print(f"     {streams} streams: {result['goodput_tokens_per_second']:.0f} tokens/s; "
              f"{result['cores']}")
        peak = max(peak, result["goodput_tokens_per_second"])

    measure_peak(PLACES)
    measure_peak(PLACES + QUEUE // 2)
    rate = 10 * peak / OUTPUT_TOKENS
    print(f"== overload: {rate:.0f} requests/s for {seconds} s")
    client = Client(programs, server, "--rate", rate, "--duration", seconds)
    memory, done = [], threading.Event()

    def sample():
        while not done.wait(1):
            memory.append(server.resident_mib())

    sampler = threading.Thread(target=sample)
    sampler.start()
    result = client.load_result(seconds + 120)
    done.set()
    sampler.join()
    good = result["goodput_tokens_per_second"]
    # Again, in case the machine did something else the first time.
    measure_peak(PLACES)
    print(f"     sent {result['started']}: {codes(result)}; up to {result['most_open']} open; "
          f"lag of the sender p99 {result['send_lag']['p99_ms']:.0f} ms; {result['cores']}")
    print(f"     first token of those served: median {result['first_token']['p50_ms']:.0f} ms, "
          f"p99 {result['first_token']['p99_ms']:.0f} ms")
    check("goodput", f"{good:.0f} tokens/s, {good / peak:.0%} of the peak", good >= 0.9 * peak)
    refused = result["refused"]
    check("refusals, p99", f"{refused['p99_ms']:.1f} ms (median {refused['p50_ms']:.1f}, most "
          f"{refused['max_ms']:.1f}) of {refused['count']}", refused["p99_ms"] < 50)
    exact(result)
    check("admitted streams lost", result["admitted_and_lost"], result["admitted_and_lost"] == 0)
    check("other statuses than OK and RESOURCE_EXHAUSTED", codes(result),
          set(codes(result)) == {"OK", "RESOURCE_EXHAUSTED"})
    # After a quarter of the time buffers have their sizes.
    early, late = memory[len(memory) // 4], memory[-1]
    check("memory", f"{memory[0]:.0f} MiB at first, {early:.0f} after a quarter, {late:.0f} at "
          "the end", late - early < 0.05 * early)
    check("exit status", status := server.end(), status == 0)


def deadlines(programs, seconds):
    server = Server(programs, free_port(), queue=1024)
    Client(programs, server, "--concurrency", PLACES, "--duration", 5).result(120)
    peaks, goods, refused = [], [], []

    def measure_peak():
        client = Client(programs, server, "--concurrency", PLACES, "--duration", 10)
        peaks.append(client.result(120)["goodput_tokens_per_second"])

    # In turn: on a machine that others share, the peak of one minute is not that of the next.
    measure_peak()
    for _ in range(DEADLINE_ROUNDS):
        rate = 8 * peaks[-1] / OUTPUT_TOKENS
        took = seconds / DEADLINE_ROUNDS
        print(f"== deadlines: {rate:.0f} requests/s for {took:.0f} s, each with 5 s")
        client = Client(programs, server, "--rate", rate, "--duration", took, "--timeout", 5)
        result = client.load_result(seconds + 60)
        goods.append(result["goodput_tokens_per_second"])
        refused.append(result["refused"]["p99_ms"])
        measure_peak()
        print(f"     sent {result['started']}: {codes(result)}; {result['cores']}; "
              f"{goods[-1]:.0f} tokens/s between peaks of {peaks[-2]:.0f} and {peaks[-1]:.0f}")
        exact(result)
    good, peak = sum(goods) / len(goods), sum(peaks) / len(peaks)
    check("goodput", f"{good:.0f} tokens/s, {good / peak:.0%} of the peak", good >= 0.9 * peak)
    check("refusals, p99", f"{max(refused):.1f} ms in the worst round", max(refused) < 50)
    check("exit status", status := server.end(), status == 0)


def fairness(programs):
    names = ("a", "b")
    with tempfile.NamedTemporaryFile("w", suffix=".keys") as keys:
        for name in names:
            print(name, f"sha256={hashlib.sha256(name.encode()).hexdigest()}", file=keys)
        keys.flush()
        server = Server(programs, free_port(), "--api-keys-file", keys.name, queue=1024)

    def load(name, *flags):
        return Client(programs, server, "--api-key", name, *flags)

    load("a", "--concurrency", PLACES, "--duration", 5).result(120)
    peak = load("a", "--concurrency", PLACES, "--duration", 10).result(120)
    peak = peak["goodput_tokens_per_second"]
    quiet = {streams: load("b", "--concurrency", streams, "--duration", 10).result(120)
             for streams in FAIR_STREAMS}
    rate = 10 * peak / OUTPUT_TOKENS
    seconds = 12 * len(FAIR_STREAMS) + 10
    print(f"== fairness: {peak:.0f} tokens/s alone; A sends {rate:.0f} requests/s")
    flood = load("a", "--rate", rate, "--duration", seconds, "--timeout", 10)
    time.sleep(4)  # the queue is full
    for streams in FAIR_STREAMS:
        contended = load("b", "--concurrency", streams, "--duration", 10).load_result(120)
        exact(contended)
        was, now = (r["first_token"]["p50_ms"] for r in (quiet[streams], contended))
        rate = contended["goodput_tokens_per_second"]
        print(f"     B with {streams} streams: {rate:.0f} tokens/s, alone "
              f"{quiet[streams]['goodput_tokens_per_second']:.0f}; {contended['cores']}")
        # More streams than half of the places wait for each other.
        if streams >= PLACES:
            check("B's part of the tokens", f"{rate / peak:.0%}", rate >= 0.45 * peak)
            continue
        check(f"first token with {streams} streams, median",
              f"{now:.2f} ms, alone {was:.2f}: {now / was:.2f} times", now <= 2 * was)
    exact(flood.result(seconds + 120))
    check("exit status", status := server.end(), status == 0)


def drain(programs):
    print("== drain under load")
    server = Server(programs, free_port())
    client = Client(programs, server, "--concurrency", PLACES + QUEUE, "--duration", 60,
                    "--end-when-unavailable")
    time.sleep(5)
    began = time.monotonic()
    status = server.end()
    took = time.monotonic() - began
    result = client.result(60)
    print(f"     {codes(result)}; the server took {took:.1f} s to end")
    check("admitted streams lost", result["admitted_and_lost"], result["admitted_and_lost"] == 0)
    exact(result)
    check("exit status", status, status == 0)
    # Those that were refused are new ones: one for each that ended in the drain.
    check("messages of refusals", sorted(m for m in result["statuses"] if m != "OK"),
          set(codes(result)) <= {"OK", "UNAVAILABLE"})


def kill(programs):
    print("== kill -9 and restart under load")
    port = free_port()
    server = Server(programs, port)
    client = Client(programs, server, "--concurrency", PLACES, "--duration", 30, "--retry",
                    "--timeout", 60)
    for pause in (0, 12):
        time.sleep(5)
        server.end(signal.SIGKILL)
        time.sleep(pause)
        server = Server(programs, port)
    result = client.result(90)
    print(f"     {result['started']} requests in {result['tries']} tries; {codes(result)}")
    check("requests that came to their end", f"{result['completed']} of {result['started']}",
          result["completed"] == result["started"])
    exact(result)
    check("tries cut off or refused by the two kills", result["tries"] - result["started"],
          result["tries"] > result["started"])
    check("exit status", status := server.end(), status == 0)


def main():
    parser = argparse.ArgumentParser(description="Overload, drain and kill a server")
    parser.add_argument("programs", type=pathlib.Path, help="folder of the built programs")
    parser.add_argument("--seconds", type=int, default=120, help="of overload")
    parser.add_argument("--only", choices=["overload", "deadlines", "fairness", "drain",
                                           "kill"])
    parser.add_argument("--model", type=pathlib.Path, default=Server.model,
                        help="whose ids 32 to 126 may be in a prompt")
    parser.add_argument("--apart", action="store_true",
                        help="server on core 0 and client on core 1, in every phase")
    arguments = parser.parse_args()
    Server.model = arguments.model
    if arguments.apart:
        Server.core, Client.core = 0, 1
    if arguments.only in (None, "overload"):
        overload(arguments.programs, arguments.seconds)
    if arguments.only in (None, "deadlines"):
        deadlines(arguments.programs, arguments.seconds // 2)
    if arguments.only in (None, "fairness"):
        fairness(arguments.programs)
    if arguments.only in (None, "drain"):
        drain(arguments.programs)
    if arguments.only in (None, "kill"):
        kill(arguments.programs)
    print(f"{sum(checks)} of {len(checks)} hold")
    sys.exit(0 if all(checks) else 1)


if __name__ == "__main__":
    main()
