"""How the peers in PyTorch are timed: by events, as CUDA graphs where launches
from Python would take longer than the work."""

import torch


def as_graph(work):
    """A function that runs `work` as a CUDA graph, after three plain runs."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def event_ms(work):
    """Milliseconds of `work` on the device."""
    start = torch.cuda.Event(enable_timing=True)
    stop = torch.cuda.Event(enable_timing=True)
    start.record()
    work()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop)


def median(values):
    return sorted(values)[len(values) // 2]


def median_us(work, repeats, flush=None):
    """Median microseconds of `work`, after three runs. With `flush`, a tensor
    larger than the caches, inputs are cold."""
    for _ in range(3):
        work()
    torch.cuda.synchronize()
    times = []
    for _ in range(repeats):
        if flush is not None:
            flush.sum()  # reads: no writes are left to do
        times.append(event_ms(work) * 1000)
    return median(times)
