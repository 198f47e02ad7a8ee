"""Times the gated delta rule of flash-linear-attention on this GPU. Shapes are
those of `recurve-kernel-bench --only gated_delta`; run it on the same machine.
As CUDA graphs, since launches from Python take longer than small kernels, and
as plain calls. Inputs are cold.

Its kernels choose among many variants. Compiling these one after another would
take minutes, so other processes compile a share each first, into Triton's
cache.
"""

import os
import subprocess
import sys
import time

import torch
from triton.runtime import autotuner

from graph_timing import as_graph, median_us

KEY_HEADS, VALUE_HEADS, DIM = 16, 32, 128
STEPS = (1, 2, 4, 8, 32, 128, 256)
PROMPTS = ((1, 2048), (1, 8192), (1, 32768), (8, 1024))
WORKERS = max(1, min(12, (os.cpu_count() or 1) - 2))


def take_share(worker, workers):
    """From here on, kernels have only every `workers`-th of their variants."""
    original = autotuner.Autotuner.__init__

    def init(self, fn, arg_names, configs, *args, **kwargs):
        if configs:
            configs = configs[worker::workers] or [
                configs[worker % len(configs)]]
        original(self, fn, arg_names, configs, *args, **kwargs)

    autotuner.Autotuner.__init__ = init


def inputs(batch, length):
    def random(*shape, dtype=torch.bfloat16):
        return torch.randn(*shape, device="cuda", dtype=dtype)

    q, k = (random(batch, length, KEY_HEADS, DIM) for _ in range(2))
    v = random(batch, length, VALUE_HEADS, DIM)
    g = -0.1 * random(batch, length, VALUE_HEADS, dtype=torch.float32).abs()
    beta = random(batch, length, VALUE_HEADS).sigmoid()
    return dict(q=q, k=k, v=v, g=g, beta=beta)


def works():
    """Pairs of a shape's name and its work."""
    from fla.ops.gated_delta_rule import (chunk_gated_delta_rule,
                                          fused_recurrent_gated_delta_rule)
    for batch in STEPS:
        x = inputs(batch, 1)
        state = torch.zeros(batch, VALUE_HEADS, DIM, DIM, device="cuda")
        yield (f"fused_recurrent step B{batch}",
               lambda x=x, state=state: fused_recurrent_gated_delta_rule(
                   **x, initial_state=state, output_final_state=True,
                   use_qk_l2norm_in_kernel=True))
    for batch, length in PROMPTS:
        x = inputs(batch, length)
        yield (f"chunk prompts B{batch} N{length}",
               lambda x=x: chunk_gated_delta_rule(
                   **x, output_final_state=True, use_qk_l2norm_in_kernel=True))


def compile_all():
    begin = time.time()
    processes = [
        subprocess.Popen([sys.executable, __file__, "share", str(i),
                          str(WORKERS)], stdout=subprocess.DEVNULL,
                         stderr=subprocess.PIPE, text=True)
        for i in range(WORKERS)]
    errors = [process.communicate()[1] for process in processes]
    failed = [e for p, e in zip(processes, errors) if p.returncode != 0]
    print(f"compiled in {time.time() - begin:.0f} s, {len(failed)} of "
          f"{WORKERS} processes failed", flush=True)
    if failed:
        print(failed[0][-600:], flush=True)


def measure():
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}")
    compile_all()
    flush = torch.ones(128 << 20, device="cuda")
    print(f"{'flash-linear-attention':32} {'graph us':>10} {'call us':>10}",
          flush=True)
    for name, work in works():
        try:
            call = f"{median_us(work, 20, flush):.1f}"
        except Exception as error:  # pylint: disable=broad-except
            call = f"{type(error).__name__}: {error}"[:120]
        try:
            graph = f"{median_us(as_graph(work), 20, flush):.1f}"
        except Exception as error:  # pylint: disable=broad-except
            graph = type(error).__name__
        print(f"{name:32} {graph:>10} {call:>10}", flush=True)


def main():
    torch.manual_seed(0)
    with torch.no_grad():
        if sys.argv[1:2] == ["share"]:
            take_share(int(sys.argv[2]), int(sys.argv[3]))
            for _, work in works():
                work()
            torch.cuda.synchronize()
        else:
            measure()


if __name__ == "__main__":
    main()
