#!/usr/bin/env python3
"""What states cost at a running server that serves nothing else.

    bench/states.py --client build/cuda/bin/recurve-client [--tokens 8000]

Prints one line a figure:

- the time of each `recurve-client state` command on a state of --tokens tokens,
  less that of `recurve-client health`, which is the start of the process;
- the server's time to the first token of a cold prompt, of an equal prompt, of
  one that differs in its last tokens, and from the state; and whether all that
  are equal have the same tokens;
- how long running streams wait while states are taken: the steps that eight
  streams lose in the 30 ms around it, next to what they lose without.

Needs the Python client (client/python) and a server with --state-dir, whose
prefix cache has room for ten such states. Token ids are at random below
--vocab.
"""

import argparse
import json
import random
import statistics
import subprocess
import threading
import time

import recurve


class Cli:
    def __init__(self, path: str, server: str) -> None:
        self._command = [path]
        self._server = ["--server", server]
        self.start = min(self.run("health")[0] for _ in range(5))

    def run(self, *args: str) -> tuple[float, str]:
        """Seconds, and what it printed."""
        begin = time.perf_counter()
        done = subprocess.run(
            [*self._command, *args, *self._server], capture_output=True, text=True, check=True
        )
        return time.perf_counter() - begin, done.stdout

    def report(self, what: str, *args: str) -> None:
        seconds, _ = self.run(*args)
        print(f"{what}: {(seconds - self.start) * 1e3:.1f} ms")


def first_tokens(cli: Cli, ids: list[int], other: list[int]) -> None:
    def text(tokens: list[int]) -> str:
        return ",".join(map(str, tokens))

    def generate(*args: str) -> tuple[float, list[int]]:
        output = cli.run("generate", "--max-new-tokens", "24", "--ignore-eos", "--json", *args)[1]
        result = json.loads(output)
        return result["timings"]["time_to_first_token_seconds"] * 1e3, result["token_ids"]

    print(f"first token, cold: {generate('--prompt-ids', text(other))[0]:.2f} ms")
    equal, tokens = generate("--prompt-ids", text(ids))
    print(f"first token, equal prompt: {equal:.2f} ms")
    tails = [other[i : i + 20] for i in (0, 20, 40)]
    parted = [generate("--prompt-ids", text(ids[:-20] + tail))[0] for tail in tails]
    print(f"first token, another end: {statistics.median(parted):.2f} ms")
    runs = [generate("--from-state", name) for name in ("made", "moved") * 2]
    print(f"first token, from the state: {statistics.median(ms for ms, _ in runs):.2f} ms")
    print("same tokens:", all(of == tokens for _, of in runs))


def delays(client: recurve.Client, ids: list[int]) -> None:
    # Appended in pieces too short for a snapshot of the prefix cache, so that
    # all of the state is copied.
    sequences = []
    for _ in range(6):
        sequence = client.sequence(ids[:31])
        for first in range(31, len(ids), 31):
            sequence.append(ids[first : first + 31])
        sequences.append(sequence)
    stop = threading.Event()
    gaps: list[tuple[float, float]] = []

    def stream(record: bool) -> None:
        last = 0.0
        for _ in client.generate(ids[:64], max_new_tokens=6000, ignore_eos=True):
            now = time.perf_counter()
            if record and last:
                gaps.append((now, now - last))
            last = now
            if stop.is_set():
                break

    threads = [threading.Thread(target=stream, args=(i == 0,)) for i in range(8)]
    for thread in threads:
        thread.start()
    time.sleep(1)
    marks = []
    for sequence in sequences:
        begin = time.perf_counter()
        state = sequence.snapshot()
        marks.append((begin, time.perf_counter(), state.bytes))
        time.sleep(0.25)
    stop.set()
    for thread in threads:
        thread.join()
    step = statistics.median(gap for _, gap in gaps)

    def lost(begin: float, end: float) -> tuple[float, int]:
        """Steps lost, of how many."""
        those = [gap for at, gap in gaps if begin <= at <= end]
        return sum(max(0.0, gap - step) for gap in those) / step, len(those)

    during = [lost(begin, end + 0.03) for begin, end, _ in marks]
    usual = [lost(begin - 0.2, begin - 0.01) for begin, _, _ in marks]
    steps = sum(count for _, count in during)
    expected = sum(of for of, _ in usual) / sum(count for _, count in usual) * steps
    milliseconds = statistics.median(end - begin for begin, end, _ in marks) * 1e3
    more = sum(of for of, _ in during) - expected
    print(f"a state of {marks[0][2]} bytes is taken in {milliseconds:.2f} ms; in {steps} steps of")
    print(f"{step * 1e3:.2f} ms around six of them {more:.1f} more are lost than usual")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--client", required=True, help="recurve-client")
    parser.add_argument("--server", default="127.0.0.1:50051")
    parser.add_argument("--tokens", type=int, default=8000)
    parser.add_argument("--vocab", type=int, default=30000)
    parser.add_argument("--file", default="/dev/shm/recurve-bench.state")
    args = parser.parse_args()
    source = random.Random(5)
    ids = [source.randrange(100, args.vocab) for _ in range(2 * args.tokens)]
    prompt, other = ids[: args.tokens], ids[args.tokens :]
    cli = Cli(args.client, args.server)
    joined = ",".join(map(str, prompt))
    cli.report("make", "state", "make", "--prompt-ids", joined, "--name", "made")
    cli.report("fork, 16", "state", "fork", "made", "--count", "16")
    cli.report("export", "state", "export", "made", "--output", args.file)
    cli.report("import", "state", "import", args.file, "--name", "moved")
    cli.report("pin", "state", "pin", "moved")
    first_tokens(cli, prompt, other)
    with recurve.Client(args.server) as client:
        delays(client, prompt)


if __name__ == "__main__":
    main()
