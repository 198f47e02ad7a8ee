"""Streams a continuation to the terminal.

python stream.py [--server HOST:PORT] [--tokens N] PROMPT
"""

from __future__ import annotations

import argparse
import sys

from recurve import Client, RecurveError


def main() -> int:
    parser = argparse.ArgumentParser(description="Streams a continuation to the terminal.")
    parser.add_argument("prompt", nargs="?", default="def add(a, b):")
    parser.add_argument("--server", default="127.0.0.1:50051", metavar="HOST:PORT")
    parser.add_argument("--tokens", type=int, default=48, help="tokens to generate")
    parser.add_argument("--temperature", type=float, default=0.0)
    arguments = parser.parse_args()
    try:
        with (
            Client(arguments.server, timeout=60) as client,
            client.generate(
                arguments.prompt,
                max_new_tokens=arguments.tokens,
                temperature=arguments.temperature,
            ) as stream,
        ):
            for tokens in stream:
                print(tokens.text, end="", flush=True)
            result = stream.result()
    except RecurveError as error:
        print(f"{error} (field: {error.field})", file=sys.stderr)
        return 1
    print(
        f"\n-- {result.usage.completion_tokens} tokens ({result.finish_reason}), "
        f"first after {result.timings.time_to_first_token_seconds * 1e3:.1f} ms, "
        f"seed {result.seed}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
