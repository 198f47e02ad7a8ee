"""Float64 statement, in numpy, of every xmixers option Recurve may meet (families llama_/tpa, linear_transformer, tnl, naive_hybrid).

usage: reference_xmixers.py SET_FOLDER...
Prints, for each prompt, the largest logit difference relative to the largest logit, and how many greedy ids agree.
Reads config.json as the authors' configuration classes would: an absent key takes the class default.
EPS_MEAN=1 in the environment puts the eps of every norm on the mean of squares, as the authors' Triton kernels do.
"""
import json, math, os, struct, sys
import numpy as np

def load(path):
    f = open(path, "rb"); n = struct.unpack("<Q", f.read(8))[0]; h = json.loads(f.read(n)); raw = f.read(); o = {}
    for k, v in h.items():
        if k == "__metadata__": continue
        a, b = v["data_offsets"]
        if v["dtype"] == "BF16": t = (np.frombuffer(raw[a:b], np.uint16).astype(np.uint32) << 16).view(np.float32)
        else: t = np.frombuffer(raw[a:b], {"F32": np.float32, "I32": np.int32, "F16": np.float16}[v["dtype"]])
        o[k] = t.reshape(v["shape"]).astype(np.int64 if v["dtype"] == "I32" else np.float64)
    return o

COMMON = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2, vocab_size=64000, tie_word_embeddings=False, embed_dim=1024, bias=False,
              channel_mixer_type="glu", mid_dim=1024, channel_mixer_activation="silu", use_gate_linear=True, max_position_embeddings=1024,
              num_layers=24, norm_type="rmsnorm", use_embed_scale=False, kv_heads=-1)
MIX = dict(use_output_gate=True, gate_act="sigmoid", gate_pos="pre", token_mixer_norm_type="rmsnorm", causal=True)
QKV = dict(q_activation="silu", k_activation="silu", v_activation="silu", q_norm=False, k_norm=False, v_norm=False, use_initial_state=False, n_min=2, n_max=256)
DEFAULTS = {
    "llama_": dict(COMMON, token_mixer_type="attn", num_heads=8, use_lrpe=True, lrpe_type=1, base=10000, head_dim=-1, q_rank=8, kv_rank=2, cp_activation="none",
                   use_postnorm=False, fuse_norm_add=False),
    "linear_transformer": dict(COMMON, **MIX, token_mixer_type="linear_attn", num_heads=8, use_lrpe=True, lrpe_type=1, base=10000, use_tpe=True,
                               linear_activation="silu", use_ape=False, use_dense_memory=False),
    "tnl": dict(COMMON, **MIX, **QKV, token_mixer_type="tnl_attn", num_heads=8),
    "naive_hybrid": dict(COMMON, **MIX, **QKV, token_mixer_type="attn", token_mixer_type_list=[], q_rank=-1, kv_rank=2, cp_activation="none", linear_num_heads=8,
                         linear_use_lrpe=False, linear_lrpe_type=1, linear_base=10000, use_dense_memory=True),
}

sig = lambda x: 1 / (1 + np.exp(-x))
def softmax(x, axis): e = np.exp(x - x.max(axis, keepdims=True)); return e / e.sum(axis, keepdims=True)
elu = lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0)))
erf = np.vectorize(math.erf)
ACT = {"gelu": lambda x: x * .5 * (1 + erf(x / math.sqrt(2))), "relu": lambda x: np.maximum(x, 0), "elu": elu, "sigmoid": sig, "exp": np.exp,
       "leak": lambda x: np.where(x > 0, x, .01 * x), "relu2": lambda x: np.maximum(x, 0) ** 2, "1+elu": lambda x: 1 + elu(x), "2+elu": lambda x: 2 + elu(x),
       "silu": lambda x: x * sig(x), "swish": lambda x: x * sig(x), "softmax_1": lambda x: softmax(x, -1), "softmax_2": lambda x: softmax(x, -2)}
act = lambda name, x: ACT.get(name, lambda x: x)(x)      # the authors: any other name is the identity
def gate_act(name, x):                                    # xopes: these four only
    assert name in ("relu", "sigmoid", "silu", "none"), name
    return act(name, x)

EPS = 1e-5
def rms_core(g): return g / np.sqrt((g * g).mean(-1, keepdims=True) + (EPS if os.environ.get("EPS_MEAN") else EPS / g.shape[-1]))
def norm(kind, w, p, x, groups=1):
    """A norm without gate; p is the tensor prefix."""
    if kind == "dynamictanh": return np.tanh(w[p + ".alpha"] * x) * w[p + ".weight"]
    if kind == "scalenorm": return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * w[p + ".scala"]
    if kind == "gatedrmsnorm": raise ValueError("refused")
    if kind == "groupnorm": raise ValueError("groupnorm fails in the authors' code")
    if kind == "groupsrmsnorm":                            # eps on the mean, in both of the authors' versions
        g = x.reshape(*x.shape[:-1], groups, -1); return (g / np.sqrt((g * g).mean(-1, keepdims=True) + EPS)).reshape(x.shape)
    if kind == "grouprmsnorm": return rms_core(x.reshape(*x.shape[:-1], groups, -1)).reshape(x.shape) * w[p + ".weight"]  # .bias, if present, is ignored
    if kind == "rmsnorm": return rms_core(x) * w[p + ".weight"]
    if kind == "srmsnorm": return rms_core(x)
    o = rms_core(x - x.mean(-1, keepdims=True)) * w[p + ".weight"]      # everything else is LayerNorm
    return o + w[p + ".bias"] if p + ".bias" in w else o

def mixer_norm(c, w, p, o, gate, heads):
    kind = c["token_mixer_norm_type"]
    if gate is None: return norm(kind, w, p, o, heads)
    if kind == "dynamictanh": return norm(kind, w, p, o) * gate           # raw gate: gate_act and gate_pos are ignored
    assert kind in ("rmsnorm", "grouprmsnorm"), f"{kind} with an output gate fails in the authors' code"
    gate = gate_act(c["gate_act"], gate)
    assert c["gate_pos"] in ("pre", "post")
    return norm(kind, w, p, o * gate, heads) if c["gate_pos"] == "pre" else norm(kind, w, p, o, heads) * gate

def lrpe(x, kind, base):                                   # x: n, heads or ranks, d
    n, _, d = x.shape; m = d // 2 if kind <= 3 else d
    assert m * (2 if kind <= 3 else 1) == d and (kind in (1, 4) or m % 2 == 0)
    th = float(base) ** (-2 / d * np.arange(m))
    if kind in (2, 5): th[:m // 2] = 0
    if kind in (3, 6): th[m // 2:] = 0
    a = (np.arange(n)[:, None] * th)[:, None]; co, si = np.cos(a), np.sin(a)
    if kind > 3: return np.concatenate([x * co, x * si], -1)
    x1, x2 = np.split(x, 2, -1); return np.concatenate([x1 * co - x2 * si, x1 * si + x2 * co], -1)

def attention(q, k, v):
    n = len(q); s = np.einsum("nhd,mhd->hnm", q, k) / math.sqrt(q.shape[-1])
    return np.einsum("hnm,mhd->nhd", softmax(np.where(np.tri(n) > 0, s, -np.inf), -1), v)
def recurrence(q, k, v, log_decay, state=None):
    n, h, d = q.shape; S = np.zeros((h, d, v.shape[-1])) if state is None else state.copy(); o = np.zeros((n, h, v.shape[-1])); lam = np.exp(log_decay)[:, None, None]
    for t in range(n): S = lam * S + k[t][:, :, None] * v[t][:, None, :]; o[t] = np.einsum("hd,hde->he", q[t], S)
    return o

def forward(folder, ids):
    raw = json.load(open(folder + "/config.json")); family = raw["model_type"]; c = dict(DEFAULTS[family], **raw); w = load(folder + "/model.safetensors")
    n, C, L = len(ids), c["embed_dim"], c["num_layers"]
    def linear(p, x): y = x @ w[p + ".weight"].T; return y + w[p + ".bias"] if p + ".bias" in w else y

    types = [c["token_mixer_type"]] * L
    if family == "naive_hybrid":
        c["num_heads"] = c["linear_num_heads"]             # the configuration class overwrites it, for tpa layers too
        lst = c["token_mixer_type_list"] or types
        types = (lst * -(-L // len(lst)))[:L]
    # position settings of each layer: in the hybrid a tpa layer takes what the last linear layer before it left in the config
    pos = []
    for t in types:
        if family == "naive_hybrid" and t in ("linear_attn", "tnl_attn"):
            c.update(use_lrpe=c["linear_use_lrpe"], lrpe_type=c["linear_lrpe_type"], base=c["linear_base"])
        pos.append((c.get("use_lrpe"), c.get("lrpe_type"), c.get("base")))

    x = w["model.embed_tokens.weight"][ids] * (math.sqrt(C) if c["use_embed_scale"] else 1)
    if c.get("use_ape"):
        if c["ape_type"] == "sincos":
            a = np.outer(np.arange(n), float(c["base"]) ** (-2 / C * np.arange(C // 2))); x = x + np.concatenate([np.sin(a), np.cos(a)], -1)
        else: x = x + w["model.ape.weight"][:n]
    if family == "linear_transformer" and c["use_tpe"]:    # replaces the stream, no residual
        H = c["num_heads"]; q, k = (np.repeat(w["model.tpe." + z].reshape(1, H, C // H), n, 0) for z in "qk")
        o = recurrence(q, k, x.reshape(n, H, -1), -np.logaddexp(0, -w["model.tpe.log_decay"])).reshape(n, C)
        x = linear("model.tpe.o_proj", norm(c["token_mixer_norm_type"], w, "model.tpe.norm", o, H))

    for l in range(L):
        p = f"model.layers.{l}."; m = p + "token_mixer."; use_lrpe, lrpe_type, base = pos[l]
        def mixer(y):
            H = c["num_heads"]
            if types[l] == "tpa":
                D = C // H if c.get("head_dim", -1) == -1 else c["head_dim"]; Rq, R = c["q_rank"], c["kv_rank"]
                bq, bk, bv = (linear(m + z + "_proj", y).reshape(n, r, D) for z, r in (("q", Rq), ("k", R), ("v", R)))
                aq = linear(m + "q_head_proj", y).reshape(n, Rq, H)                                    # no activation
                ak, av = (act(c["cp_activation"], linear(m + z + "_head_proj", y)).reshape(n, R, H) for z in "kv")  # before the split into ranks
                if use_lrpe: bq, bk = lrpe(bq, lrpe_type, base), lrpe(bk, lrpe_type, base)
                q, k, v = (np.einsum("nrh,nrd->nhd", a, b) / b.shape[1] for a, b in ((aq, bq), (ak, bk), (av, bv)))
                return linear(m + "o_proj", attention(q, k, v).reshape(n, H * D))
            q, k, v = (linear(m + z + "_proj", y).reshape(n, H, C // H) for z in "qkv"); ld, state = np.zeros(H), None
            if types[l] == "linear_attn":
                q, k = act(c["linear_activation"], q), act(c["linear_activation"], k)
                if use_lrpe: q, k = lrpe(q, lrpe_type, base), lrpe(k, lrpe_type, base)
            else:
                assert types[l] == "tnl_attn", types[l]
                l2 = lambda t: rms_core(t) / math.sqrt(t.shape[-1])
                q, k, v = (act(c[z + "_activation"], l2(t) if c[z + "_norm"] else t) for z, t in (("q", q), ("k", k), ("v", v)))
                steps = np.exp(math.log(c["n_min"]) + (math.log(c["n_max"]) - math.log(c["n_min"])) * np.arange(H) / (H - 1))
                ld = -1 / steps * (1 - l / (L - 1) + 1e-5)
                if c["use_initial_state"]: state = w[m + "initial_state"]
            o = recurrence(q, k, v, ld, state).reshape(n, C)
            gate = linear(m + "output_gate.1", linear(m + "output_gate.0", y)) if c["use_output_gate"] else None
            return linear(m + "o_proj", mixer_norm(c, w, m + "norm", o, gate, H))
        def channel(y):
            g = m.replace("token_mixer", "channel_mixer"); f = gate_act if c["use_gate_linear"] else act
            return linear(g + "w3", f(c["channel_mixer_activation"], linear(g + "w1", y)) * linear(g + "w2", y))
        tn, cn = (lambda y, s=s: norm(c["norm_type"], w, p + s, y) for s in ("token_norm", "channel_norm"))
        if family == "llama_" and c["use_postnorm"]: x = tn(mixer(x) + x); x = cn(channel(x) + x)
        else: x = x + mixer(tn(x)); x = x + channel(cn(x))
    x = norm(c["norm_type"], w, "model.final_norm", x)
    head = "lm_head" if "lm_head.weight" in w else "model.embed_tokens"
    y = x @ w[head + ".weight"].T
    return y + w["lm_head.bias"] if "lm_head.bias" in w else y

if __name__ == "__main__":
    for d in sys.argv[1:]:
        E = load(d + "/expected.safetensors"); r = []
        for k in sorted(E):
            if not k.startswith("prompt"): continue
            s = k[7:]; ids = np.concatenate([E[k], E["greedy_" + s]])[:-1]
            try: y = forward(d, ids)
            except Exception as ex: r.append(f"{s}: {type(ex).__name__} {ex}"); continue
            lg = y[len(E[k]) - 1:]; ref = E["logits_" + s]; last = E["last_prompt_logits_" + s]
            e1 = np.abs(lg - ref).max() / np.abs(ref).max(); e2 = np.abs(y[len(E[k]) - len(last):len(E[k])] - last).max() / np.abs(last).max()
            r.append(f"{s}: rel {max(e1, e2):.1e} ids {int((lg.argmax(-1) == E['greedy_' + s]).sum())}/{len(ref)}")
        print(f"{os.path.basename(d.rstrip('/')):36s} | {' | '.join(r)}", flush=True)
