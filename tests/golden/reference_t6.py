"""Every T6 variant in numpy float64, token by token with the caches a server keeps: design.md section 4 for T6, executable.

usage: reference_t6.py [--break=WHAT] SET_FOLDER...
Prints, for each prompt, the largest logit difference (relative to the largest logit) for the generated rows and for the
last prompt rows, how many greedy ids agree, and the mean weight of the heaviest key (1 = one-hot, softmax variants).
--break shows that the sets can tell a mistake: sign, pairs, base (angles of the whole head instead of the rotated part),
nodecay, relative (decay on the key divided by the query's), bf16 (rounding of the tables left out, or put in where it is
not), scale, norm, rank, double (angles in double).
Softmax variants keep per token A_k [H,R], B_k [R,D] rotated, A_v [H,R], B_v [R,D]; linear ones keep S [H,D,D] only.
"""
import json, math, os, struct, sys
import numpy as np

f32 = np.float32
DEFAULTS = dict(n_layer=12, n_head=22, head_dim=64, n_embd=768, rank=2, vocab_size=50304)
BREAK = ''


def load(path):
    with open(path, 'rb') as f:
        header = json.loads(f.read(struct.unpack('<Q', f.read(8))[0]))
        raw = f.read()
    out = {}
    for name, t in header.items():
        if name != '__metadata__':
            a, b = t['data_offsets']
            x = np.frombuffer(raw[a:b], {'F32': f32, 'I32': np.int32}[t['dtype']])
            out[name] = x.reshape(t['shape']).astype(np.int64 if t['dtype'] == 'I32' else np.float64)
    return out


def bf16(x):
    u = np.asarray(x, f32).view(np.uint32)
    return ((u + (((u >> 16) & 1) + 0x7fff)) & 0xffff0000).view(f32)


def rotated_dims(config, variant):
    d = config['head_dim']
    if 'partialrope' not in variant:
        return d
    return int(d * config.get('rope_partial_factor', 1.0 / 3)) // 2 * 2


def tables(config, variant, n):
    """cos, sin, decay [n, rotated/2], the float32 numbers the authors' code multiplies with."""
    rot = rotated_dims(config, variant)
    exponent = np.arange(0, rot, 2, dtype=f32) / f32(config['head_dim'] if BREAK == 'base' else rot)
    inv_freq = f32(1) / np.power(10000.0, exponent.astype(np.float64)).astype(f32)
    angle = np.outer(np.arange(n, dtype=f32), inv_freq).astype(f32)
    if BREAK == 'double':
        angle = np.outer(np.arange(n), 10000.0 ** (-np.arange(0, rot, 2) / rot))
    c, s = np.cos(angle.astype(np.float64)).astype(f32), np.sin(angle.astype(np.float64)).astype(f32)
    decay = np.ones_like(c)
    if variant.endswith('_decay'):
        log_base = f32(np.log(np.float64(f32(config.get('rope_decay_base', 0.999)))))
        decay = np.exp((angle.astype(f32) * log_base).astype(f32).astype(np.float64)).astype(f32)
    if variant.endswith('_decay') == (BREAK == 'bf16'):
        c, s = bf16(c), bf16(s)
    if BREAK == 'nodecay':
        decay = np.ones_like(c)
    return c.astype(np.float64), s.astype(np.float64), decay.astype(np.float64)


def rotate(x, c, s, decay):
    """x [..., D]: pairs (i, i + rot/2) of the first rot dims turn by minus the angle and shrink; the rest pass."""
    m = len(c)
    if BREAK == 'sign':
        s = -s
    if BREAK == 'pairs' and 2 * m < x.shape[-1]:
        h = x.shape[-1] // 2
        a, b = x[..., :m], x[..., h:h + m]
        return np.concatenate([(a * c + b * s) * decay, x[..., m:h], (b * c - a * s) * decay, x[..., h + m:]], -1)
    a, b = x[..., :m], x[..., m:2 * m]
    return np.concatenate([(a * c + b * s) * decay, (b * c - a * s) * decay, x[..., 2 * m:]], -1)


def rms(x, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)


def silu(x):
    return x / (1 + np.exp(-x))


class Model:
    def __init__(self, folder):
        self.config = {**DEFAULTS, **json.load(open(os.path.join(folder, 'config.json')))}
        self.w = load(os.path.join(folder, 'model.safetensors'))
        self.variant = self.config['t6_variant']
        self.linear, self.ropek = 'linearattn' in self.variant, 'ropek' in self.variant
        self.eps = np.finfo(f32).eps
        self.peak = []

    def logits(self, ids):
        c, w = self.config, self.w
        self.c, self.s, self.d = tables(c, self.variant, len(ids))
        self.caches = [None] * c['n_layer']
        rows = []
        for p, i in enumerate(ids):
            x = w['transformer.wte.weight'][i]
            for l in range(c['n_layer']):
                x = x + self.attention(l, p, rms(x, self.eps))
                m = f'transformer.h.{l}.mlp.'
                y = rms(x, self.eps)
                x = x + w[m + 'c_proj.weight'] @ (silu(w[m + 'c_fc1.weight'] @ y) * (w[m + 'c_fc2.weight'] @ y))
            rows.append(w['transformer.wte.weight'] @ rms(x, self.eps))
        return np.array(rows)

    def attention(self, l, p, y):
        c, prefix = self.config, f'transformer.h.{l}.attn.'
        H, D, R = c['n_head'], c['head_dim'], c['rank']
        project = lambda name: self.w[f'{prefix}c_qkv.{name}.weight'] @ y
        turn = (self.c[p], self.s[p], self.d[p])
        a_k, a_v = project('W_A_k').reshape(H, R), project('W_A_v').reshape(H, R)
        b_k, b_v = rotate(project('W_B_k').reshape(R, D), *turn), project('W_B_v').reshape(R, D)
        if BREAK == 'relative':
            turn = (self.c[p], self.s[p], 1 / self.d[p])
        if 'kvonly' in self.variant:
            q = rotate(project('c_q').reshape(H, D), *turn)
        else:
            Rq = c['q_rank']
            a_q, b_q = project('W_A_q').reshape(H, Rq), project('W_B_q').reshape(Rq, D)
            q = rotate(a_q @ b_q, *turn) / Rq if self.ropek else a_q @ rotate(b_q, *turn) / Rq
        if BREAK == 'rank':
            a_k = a_k * R
        if self.linear:
            if self.caches[l] is None:
                self.caches[l] = np.zeros((H, D, D))
            k, v = a_k @ b_k / R, a_v @ b_v / R
            self.caches[l] += k[:, :, None] * v[:, None, :]
            o = np.einsum('hd,hde->he', q, self.caches[l]) * (D ** -0.5 if BREAK == 'scale' else 1)
        else:
            cache = self.caches[l] = self.caches[l] or ([], [], [], [])
            for part, value in zip(cache, (a_k, b_k, a_v, b_v)):
                part.append(value)
            A_k, B_k, A_v, B_v = map(np.array, cache)
            score = np.einsum('mhr,mhr->hm', A_k, np.einsum('hd,mrd->mhr', q, B_k)) / R * (1 if BREAK == 'scale' else D ** -0.5)
            weight = np.exp(score - score.max(-1, keepdims=True))
            weight /= weight.sum(-1, keepdims=True)
            if p > 8:
                self.peak.append(weight.max(-1).mean())
            o = np.einsum('hm,mhr,mrd->hd', weight, A_v, B_v, optimize=True) / R
        if prefix + 'subln.weight' in self.w and BREAK != 'norm':
            o = rms(o, 1e-5) * self.w[prefix + 'subln.weight']
        return self.w[prefix + 'c_proj.weight'] @ o.reshape(-1)


def main():
    global BREAK
    for arg in sys.argv[1:]:
        if arg.startswith('--break='):
            BREAK = arg[8:]
            continue
        model, expected, report = Model(arg), load(os.path.join(arg, 'expected.safetensors')), []
        for name in sorted(expected):
            if not name.startswith('prompt_'):
                continue
            n = name[7:]
            prompt, greedy, rows = expected[name], expected['greedy_' + n], expected['logits_' + n]
            last = expected['last_prompt_logits_' + n]
            model.peak = []
            got = model.logits(np.concatenate([prompt, greedy])[:-1])
            error = lambda a, b: np.abs(a - b).max() / np.abs(b).max()
            ours = got[len(prompt) - 1:]
            peak = f' peak {np.mean(model.peak):.2f}' if model.peak else ''
            report.append(f'{n}: rel {error(ours, rows):.1e} prompt {error(got[len(prompt) - len(last):len(prompt)], last):.1e} '
                          f'ids {(ours.argmax(-1) == greedy).sum()}/{len(greedy)}{peak}')
        print(os.path.basename(arg.rstrip('/')), '|', ' | '.join(report), flush=True)


main()
