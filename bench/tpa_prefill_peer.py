"""Times what TPA over a prompt would take otherwise, on this GPU: keys and values
of all heads made by PyTorch, then cuDNN's attention. Shapes are those of
`recurve-kernel-bench --only tpa_prefill`; run it on the same machine."""

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from graph_timing import median_us


def combine(a, b):
    """[1, heads, tokens, features] of factors [tokens, rank, heads] and
    [tokens, rank, features]."""
    if a.shape[1] == 1:
        return (a[:, 0, :, None] * b[:, 0, None, :]).transpose(0, 1)[None]
    return torch.bmm(a.transpose(1, 2), b).transpose(0, 1)[None] / a.shape[1]


def attend(q, k, v):
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def case(heads, dim, rank, tokens, q_rank):
    def random(*shape):
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)

    a_q, b_q = random(tokens, q_rank, heads), random(tokens, q_rank, dim)
    a_k, b_k = random(tokens, rank, heads), random(tokens, rank, dim)
    a_v, b_v = random(tokens, rank, heads), random(tokens, rank, dim)
    q, k, v = combine(a_q, b_q), combine(a_k, b_k), combine(a_v, b_v)
    repeats = 7 if tokens > 10000 else 30
    alone = median_us(lambda: attend(q, k, v), repeats)
    made = median_us(
        lambda: attend(q, combine(a_k, b_k), combine(a_v, b_v)), repeats)
    all_made = median_us(
        lambda: attend(combine(a_q, b_q), combine(a_k, b_k), combine(a_v, b_v)),
        repeats)
    flops = 2.0 * heads * tokens * tokens * dim
    print(f"H{heads} D{dim} R{rank} B1 N{tokens}: cuDNN alone {alone:.1f} us "
          f"({flops / alone * 1e-6:.0f} TF/s), k v + cuDNN {made:.1f} us, "
          f"q k v + cuDNN {all_made:.1f} us", flush=True)


def main():
    torch.manual_seed(0)
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, cuDNN "
          f"{torch.backends.cudnn.version()}")
    for tokens in (2048, 8192, 32768):
        for rank in (1, 2):
            case(32, 128, rank, tokens, 16)
    for tokens in (2048, 8192):
        case(78, 64, 2, tokens, 6)


if __name__ == "__main__":
    main()
