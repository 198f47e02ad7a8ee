"""Times attention with grouped heads on this GPU: cuDNN's through PyTorch, and
FlashInfer's decode if it is installed. Shapes are those of
`recurve-kernel-bench --only attention`; run it on the same machine. As CUDA
graphs, with cold inputs."""

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from graph_timing import as_graph, median_us

try:
    import flashinfer
except ImportError:
    flashinfer = None

HEADS, KV_HEADS, DIM, PAGE = 16, 4, 256, 64
DECODE = [(rows, tokens) for tokens in (2048, 8192, 32768)
          for rows in (1, 8, 32)] + [(128, 2048)]
PROMPTS = (2048, 8192, 32768)


def random(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def cudnn(q, k, v, causal):
    def work():
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return F.scaled_dot_product_attention(
                q, k, v, is_causal=causal, enable_gqa=True)
    return work


def flashinfer_decode(rows, tokens, tensor_cores):
    """Pages in a random order, as a server has them."""
    pages = tokens // PAGE
    total = rows * pages
    cache = random(total, 2, PAGE, KV_HEADS, DIM)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
        torch.zeros(256 << 20, dtype=torch.uint8, device="cuda"), "NHD",
        use_tensor_cores=tensor_cores)
    wrapper.plan(
        torch.arange(rows + 1, dtype=torch.int32) * pages,
        torch.randperm(total).to("cuda", torch.int32),
        torch.full((rows,), PAGE, dtype=torch.int32),
        HEADS, KV_HEADS, DIM, PAGE,
        q_data_type=torch.bfloat16, kv_data_type=torch.bfloat16)
    q = random(rows, HEADS, DIM)
    out = torch.empty_like(q)
    return lambda: wrapper.run(q, cache, out=out)


def report(name, make, repeats, flush):
    try:
        us = median_us(as_graph(make()), repeats, flush)
        print(f"{name:44} {us:10.1f} us", flush=True)
    except Exception as error:  # pylint: disable=broad-except
        print(f"{name:44} {type(error).__name__}: {error}"[:200], flush=True)
    torch.cuda.empty_cache()


def main():
    torch.manual_seed(0)
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, cuDNN "
          f"{torch.backends.cudnn.version()}, FlashInfer "
          f"{flashinfer.__version__ if flashinfer else 'not installed'}")
    flush = torch.ones(128 << 20, device="cuda")
    for rows, tokens in DECODE:
        shape = f"decode B{rows} M{tokens}"
        report(f"cuDNN {shape}", lambda: cudnn(
            random(rows, HEADS, 1, DIM), random(rows, KV_HEADS, tokens, DIM),
            random(rows, KV_HEADS, tokens, DIM), False), 20, flush)
        if flashinfer is None:
            continue
        for tensor_cores in (True, False):
            name = "tensor cores" if tensor_cores else "CUDA cores"
            report(f"FlashInfer, {name}, {shape}", lambda: flashinfer_decode(
                rows, tokens, tensor_cores), 20, flush)
    for tokens in PROMPTS:
        report(f"cuDNN prompt N{tokens}", lambda: cudnn(
            random(1, HEADS, tokens, DIM), random(1, KV_HEADS, tokens, DIM),
            random(1, KV_HEADS, tokens, DIM), True),
            7 if tokens > 10000 else 20, flush)


if __name__ == "__main__":
    main()
