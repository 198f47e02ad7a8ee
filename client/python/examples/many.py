"""Runs many prompts at a time with asyncio, at most 16 open at once.

python many.py [HOST:PORT]
"""

from __future__ import annotations

import asyncio
import sys

from recurve import AsyncClient, Generation

PROMPTS = [f"x = {{'a': {n}, 'b': {n + 1}}}\nassert x['b'] == " for n in range(10, 50)]


async def main(server: str) -> None:
    open_streams = asyncio.Semaphore(16)
    async with AsyncClient(server, timeout=60) as client:

        async def run(prompt: str) -> Generation:
            async with open_streams:
                return await client.generate(prompt, max_new_tokens=3).result()

        results = await asyncio.gather(*(run(prompt) for prompt in PROMPTS))
    for prompt, result in zip(PROMPTS, results, strict=True):
        print(repr(prompt), "->", repr(result.text))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:50051"))
