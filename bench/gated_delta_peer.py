"""Times the gated delta rule of flash-linear-attention on this GPU. Shapes are
those of `recurve-kernel-bench --only gated_delta`; run it on the same machine.
Steps are timed as CUDA graphs, since a launch from Python takes longer than
small ones; prompts as plain calls and as graphs. Inputs are cold."""

import torch
from fla.ops.gated_delta_rule import (chunk_gated_delta_rule,
                                      fused_recurrent_gated_delta_rule)

KEY_HEADS, VALUE_HEADS, DIM = 16, 32, 128


def median_us(work, repeats, flush):
    for _ in range(3):
        work()
    torch.cuda.synchronize()
    times = []
    for _ in range(repeats):
        flush.sum()  # reads: no writes are left to do
        start = torch.cuda.Event(enable_timing=True)
        stop = torch.cuda.Event(enable_timing=True)
        start.record()
        work()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop) * 1000)
    return sorted(times)[len(times) // 2]


def as_graph(work):
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def inputs(batch, length):
    def random(*shape, dtype=torch.bfloat16):
        return torch.randn(*shape, device="cuda", dtype=dtype)

    q, k = (random(batch, length, KEY_HEADS, DIM) for _ in range(2))
    v = random(batch, length, VALUE_HEADS, DIM)
    g = -0.1 * random(batch, length, VALUE_HEADS, dtype=torch.float32).abs()
    beta = random(batch, length, VALUE_HEADS).sigmoid()
    return dict(q=q, k=k, v=v, g=g, beta=beta)


def main():
    torch.manual_seed(0)
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}")
    flush = torch.ones(128 << 20, device="cuda")
    with torch.no_grad():
        for batch in (1, 8, 32, 128, 256):
            x = inputs(batch, 1)
            state = torch.zeros(batch, VALUE_HEADS, DIM, DIM, device="cuda")

            def step():
                fused_recurrent_gated_delta_rule(
                    **x, initial_state=state, output_final_state=True,
                    use_qk_l2norm_in_kernel=True)

            print(f"step B{batch}: graph "
                  f"{median_us(as_graph(step), 20, flush):.1f} us, call "
                  f"{median_us(step, 20, flush):.1f} us", flush=True)
        for length in (2048, 8192, 32768):
            x = inputs(1, length)

            def prompt():
                chunk_gated_delta_rule(
                    **x, output_final_state=True, use_qk_l2norm_in_kernel=True)

            print(f"prompts B1 N{length}: graph "
                  f"{median_us(as_graph(prompt), 20, flush):.1f} us, call "
                  f"{median_us(prompt, 20, flush):.1f} us", flush=True)


if __name__ == "__main__":
    main()
