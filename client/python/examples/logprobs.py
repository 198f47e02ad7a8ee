"""Shows, for each generated token, what else the model thought of.

python logprobs.py [HOST:PORT]
"""

from __future__ import annotations

import math
import sys

from recurve import Client


def main(server: str) -> None:
    with Client(server, timeout=60) as client:
        result = client.generate("import os", max_new_tokens=12, logprobs=3).result()
    for token, entry in zip(result.token_ids, result.logprobs, strict=True):
        others = ", ".join(f"{i}: {math.exp(p):.3f}" for i, p in entry.top)
        print(f"{token:6d}  {math.exp(entry.logprob):.3f}  of  {others}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:50051")
