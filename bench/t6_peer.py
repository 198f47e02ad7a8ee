"""Times a decode step of the T6 authors' PyTorch model on this GPU, with what a
user would give it to serve: a static cache of keys and values of all heads,
bfloat16, and one CUDA graph for the whole step. For comparison with
`recurve-step-bench` of the same sizes on the same machine.

    python3 bench/t6_peer.py path/to/T6/model/T6.py --batch 1,8,32 --context 2048

Every sequence attends to `context` tokens without a mask, which favours the
model. Greedy tokens; random weights.
"""

import argparse
import importlib.util
import json
import multiprocessing
import sys
import types

import torch
import torch.nn.functional as F

from graph_timing import as_graph, event_ms, median


def load(path):
    """The authors' module. Without `transformers` installed, its two base classes
    are plain ones: nothing of them runs in a step."""
    try:
        import transformers  # noqa: F401
    except ImportError:
        class Config:
            def __init__(self, **kwargs):
                for name, value in kwargs.items():
                    setattr(self, name, value)

        class Model(torch.nn.Module):
            def __init__(self, config=None):
                super().__init__()

        for name, members in [("transformers", {"PreTrainedModel": Model}),
                              ("transformers.configuration_utils", {"PretrainedConfig": Config}),
                              ("transformers.modeling_utils", {"PreTrainedModel": Model})]:
            module = types.ModuleType(name)
            vars(module).update(members)
            sys.modules[name] = module
    spec = importlib.util.spec_from_file_location("t6_model", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class CachedAttention(torch.nn.Module):
    """The authors' attention for one token a sequence, over a static cache."""

    def __init__(self, attention, batch, context, position):
        super().__init__()
        self.attention = attention
        shape = (batch, attention.n_head, context, attention.head_dim)
        self.k = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
        self.v = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
        self.position = position
        half = attention.head_dim // 2
        angles = torch.arange(half, device="cuda").float() / half
        self.steps = 1.0 / 10000**angles

        def rotary(x):
            turned = self.position.float() * self.steps
            return (turned.cos().bfloat16()[None, None, None, :],
                    turned.sin().bfloat16()[None, None, None, :])

        # In place of the module that begins at position 0.
        attention.c_qkv.rotary = rotary_module(rotary)

    def forward(self, x):
        q, k, v = self.attention.c_qkv(x)
        self.k.index_copy_(2, self.position, k.transpose(1, 2))
        self.v.index_copy_(2, self.position, v.transpose(1, 2))
        y = F.scaled_dot_product_attention(q.transpose(1, 2), self.k, self.v)
        y = y.transpose(1, 2).reshape(x.shape[0], 1, -1)
        return self.attention.c_proj(y)


def rotary_module(function):
    module = torch.nn.Module()
    module.forward = function
    return module


def step_ms(args, batch, context):
    """The median, or None if memory is short."""
    try:
        return measure(load(args.model), args, batch, context)
    except torch.cuda.OutOfMemoryError:
        return None


def measure(module, args, batch, context):
    with torch.device("cuda"):
        torch.set_default_dtype(torch.bfloat16)
        config = module.GPTConfig(
            vocab_size=50304, n_layer=args.layers, n_head=78, head_dim=64, n_embd=1600,
            rank=2, q_rank=6, block_size=context, bias=False, dropout=0.0,
            using_groupnorm=False)
        model = module.GPT(config).eval()
        torch.set_default_dtype(torch.float32)
    model = model.to(torch.bfloat16)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    position = torch.full((1,), context - 1, device="cuda", dtype=torch.long)
    for block in model.transformer.h:
        block.attn = CachedAttention(block.attn, batch, context, position)
    tokens = torch.zeros((batch, 1), device="cuda", dtype=torch.long)

    def step():
        # Not the default: it takes the last position by a list, which a graph cannot
        # capture. Of one token the two are the same.
        logits, _ = model(tokens, output_all_seq=True)
        tokens.copy_(logits[:, -1].argmax(-1, keepdim=True))

    with torch.inference_mode():
        replay = as_graph(step)
        return median([event_ms(replay) for _ in range(args.repeats)])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("model", help="the authors' model/T6.py")
    parser.add_argument("--batch", default="1,8,32")
    parser.add_argument("--context", default="2048")
    parser.add_argument("--layers", type=int, default=48)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--json", help="write the results there")
    args = parser.parse_args()
    results = []
    for context in map(int, args.context.split(",")):
        for batch in map(int, args.batch.split(",")):
            cache = 2 * args.layers * 78 * 64 * 2 * batch * context
            # Each in a process of its own: what cuBLAS keeps of one graph fails in
            # the next (CUBLAS_STATUS_INTERNAL_ERROR).
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                ms = pool.apply(step_ms, (args, batch, context))
            print(f"batch {batch:4d}  context {context:6d}  "
                  f"{'out of memory' if ms is None else f'{ms:8.3f} ms'}"
                  f"  (keys and values: {cache / 1e9:.1f} GB)", flush=True)
            results.append({"batch": batch, "context": context, "milliseconds": ms})
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"gpu": torch.cuda.get_device_name(), "torch": torch.__version__,
                       "layers": args.layers, "steps": results}, file, indent=1)


if __name__ == "__main__":
    main()
