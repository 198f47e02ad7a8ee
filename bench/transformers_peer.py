#!/usr/bin/env python3
"""Times decode steps of a model in transformers on this GPU: bfloat16, random
weights, a static cache and a CUDA graph of the step.

    bench/transformers_peer.py CONFIG [--batch 1,32,128] [--context 2048]

CONFIG is a folder with config.json, for example of `recurve-model random`. The
cache is filled by a prompt of eight tokens, and then said to hold --context;
attention reads all of it. Compare with `recurve-step-bench` on one machine.
"""

import argparse

import torch
import transformers

from graph_timing import as_graph, event_ms, median

# Tokens that the cache has room for beyond the context: the steps between two
# resets of its length.
ROOM = 16


def set_length(cache: transformers.StaticCache, tokens: int) -> None:
    for layer in cache.layers:
        length = getattr(layer, "cumulative_length", None)
        if length is not None:
            length.fill_(tokens)


def median_ms(model, batch: int, context: int) -> float:
    text = model.config.get_text_config()
    cache = transformers.StaticCache(config=text, max_cache_len=context + ROOM)
    ids = torch.randint(text.vocab_size, (batch, 8), device="cuda")
    model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
    ids = ids[:, :1].clone()

    def step() -> None:
        logits = model(input_ids=ids, past_key_values=cache, use_cache=True).logits
        ids.copy_(logits.argmax(-1))

    set_length(cache, context)
    replay = as_graph(step)
    times = []
    for _ in range(4):
        set_length(cache, context)
        times += [event_ms(replay) for _ in range(ROOM)]
    return median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("config", help="a folder with config.json")
    parser.add_argument("--batch", default="1,32,128")
    parser.add_argument("--context", type=int, default=2048)
    args = parser.parse_args()
    torch.manual_seed(0)
    config = transformers.AutoConfig.from_pretrained(args.config)
    print(
        f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, "
        f"transformers {transformers.__version__}"
    )
    with torch.no_grad(), torch.device("cuda"):
        model = transformers.AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16, attn_implementation="sdpa"
        ).eval()
        for batch in map(int, args.batch.split(",")):
            print(
                f"batch {batch:4}  context {args.context:6}  "
                f"{median_ms(model, batch, args.context):9.3f} ms",
                flush=True,
            )


if __name__ == "__main__":
    main()
