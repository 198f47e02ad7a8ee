"""A generation that outlives a restart of its server.

Start it, then stop the server with kill -9 and start it again on the same port:
the stream goes on where it broke, with the same tokens as if nothing had been.

python survive_restart.py [HOST:PORT [TOKENS]]
"""

from __future__ import annotations

import sys

from recurve import Client, RetryPolicy


def main(server: str = "127.0.0.1:50051", tokens: int = 4000) -> None:
    patient = RetryPolicy(max_attempts=100, max_backoff=2.0)
    with Client(server, timeout=600, retry=patient) as client:
        stream = client.generate(
            "import os\n", max_new_tokens=tokens, ignore_eos=True, temperature=0.7, resume=True
        )
        for piece in stream:
            print(piece.text, end="", flush=True)
    result = stream.result()
    print(f"\n-- {result.usage.completion_tokens} tokens, seed {result.seed}")


if __name__ == "__main__":
    if len(sys.argv) > 2:
        main(sys.argv[1], int(sys.argv[2]))
    elif len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        main()
