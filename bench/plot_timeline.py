#!/usr/bin/env python3
"""Draws when the kernels of steps ran: docs/figures/step_timeline.svg.

  bench/plot_timeline.py [--out FILE] [--table] JSON

JSON is what recurve-step-bench --timeline wrote. Of each step: all of it, and
a layer in its middle. Kernels start early and wait for those before them: the
time of one counts from the end of the last before it that was still running
(dark; light before that). --table prints the shares. Needs matplotlib.
"""

import argparse
import itertools
import json
import pathlib

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent
# What part of a kernel's name says what it is; the first that fits.
KINDS = [
    ("attention", "C1", ("tpa_",)),
    ("products", "C0", ("tile_kernel", "wide_kernel", "parts_kernel",
                        "stream_kernel", "matmul_kernel", "product_chain",
                        "nvjet", "gemm", "cutlass")),
    ("norms", "C2", ("norm",)),
    ("linear attention", "C4", ("linear", "scan")),
    ("other: copies, tables, sampling", "C7", ("",)),
]
LABELS = {
    "tpa_append_kernel": "append",
    "tpa_decode_kernel": "attention",
    "tpa_decode_fast": "attention",
    "tpa_decode_any": "attention",
    "norm_kernel": "norm",
    "tile_kernel": "product",
    "wide_kernel": "product",
    "parts_kernel": "product",
    "stream_kernel": "product",
    "product_chain": "products of a layer",
}


def kind_of(name):
    return next(i for i, (_, _, parts) in enumerate(KINDS)
                if any(part in name for part in parts))


def describe(step):
    parts = []
    if step["batch"] > 0:
        parts.append(f"batch {step['batch']}, context {step['context']}")
    if step.get("prompt", 0) > 0:
        parts.append(f"{step.get('prompt_count', 1)} x {step['prompt']} tokens "
                     "of prompts")
    return ", ".join(parts)


def read(step):
    """(name, begin, working from, end) in microseconds, by begin.

    From the first kernel of the graph on: between what brings the step's numbers
    (a copy, and a kernel that moves them) and the graph there is what tracing
    costs the host.
    """
    spans, last = [], 0.0
    rows = list(itertools.dropwhile(lambda row: row[0] in ("copy", "copy_kernel"), step["spans"]))
    if not rows:
        raise SystemExit(f"plot_timeline: the step of {describe(step)} has no "
                         "kernels; was it traced?")
    origin = rows[0][1]
    for name, begin, end, *_ in rows:
        begin, end = (begin - origin) / 1e3, (end - origin) / 1e3
        spans.append((name, begin, max(begin, min(last, end)), end))
        last = max(last, end)
    return spans


def shares(spans):
    times = [0.0] * len(KINDS)
    for name, _, working, end in spans:
        times[kind_of(name)] += end - working
    total = max(end for *_, end in spans)
    return times, total - sum(times), total


def middle_layer(spans):
    begins = [begin for name, begin, *_ in spans if name.startswith("tpa_append")]
    i = len(begins) // 2
    return (begins[i], begins[i + 1]) if len(begins) > i + 1 else None


def draw(axes, spans, scale, whole):
    for i, (_, color, _) in enumerate(KINDS):
        mine = [s for s in spans if kind_of(s[0]) == i]
        for low, high, alpha in ((1, 2, 0.3), (2, 3, 1.0)):
            axes.broken_barh([(s[low] / scale, (s[high] - s[low]) / scale)
                              for s in mine if s[high] > s[low]],
                             (len(KINDS) - i - 0.9, 0.8), color=color,
                             alpha=alpha, rasterized=whole,
                             linewidth=0 if whole else 0.6,
                             edgecolor="white")
    axes.set_ylim(0, len(KINDS))
    axes.set_yticks([len(KINDS) - i - 0.5 for i in range(len(KINDS))],
                    [name.split(":")[0] for name, *_ in KINDS], fontsize=7)
    axes.grid(axis="x", color="#dddddd", linewidth=0.5)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("json", type=pathlib.Path)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--out", type=pathlib.Path,
                        default=ROOT.parent / "docs/figures/step_timeline.svg")
    args = parser.parse_args()
    plt.rcParams.update({"font.size": 8, "svg.fonttype": "none",
                         "svg.hashsalt": "recurve"})
    run = json.loads(args.json.read_text())
    global KINDS
    used = {kind_of(span[0]) for step in run["steps"] for span in step["spans"]}
    KINDS = [kind for i, kind in enumerate(KINDS) if i in used]
    figure, panels = plt.subplots(
        2 * len(run["steps"]), 1, figsize=(9, 3.1 * len(run["steps"])),
        squeeze=False)
    for step, whole, layer in zip(run["steps"], panels[::2, 0],
                                  panels[1::2, 0]):
        spans = read(step)
        times, idle, total = shares(spans)
        title = f"{describe(step)}: {total / 1e3:.2f} ms, traced"
        if args.table:
            print(title)
            for (name, *_), time in zip(KINDS, times):
                print(f"  {name:38} {time:9.1f} µs {100 * time / total:5.1f}%")
            print(f"  {'between kernels':38} {idle:9.1f} µs "
                  f"{100 * idle / total:5.1f}%")
        whole.set_title(title, fontsize=9, loc="left")
        draw(whole, spans, 1e3, True)  # hundreds of bars: as pixels
        whole.set_xlim(0, total / 1e3)
        whole.set_xlabel("ms", labelpad=1)
        bounds = middle_layer(spans)
        if bounds is None:
            continue
        shown = [(name, begin - bounds[0], working - bounds[0],
                  end - bounds[0]) for name, begin, working, end in spans
                 if end > bounds[0] and begin < bounds[1] + 5]
        draw(layer, shown, 1, False)
        layer.set_xlim(-2, bounds[1] - bounds[0] + 5)
        layer.set_xlabel("µs: a layer in the middle, and how the next begins",
                         labelpad=1)
        for name, begin, working, end in shown:
            if begin < -2:
                continue
            layer.text((working + end) / 2, len(KINDS) - kind_of(name) - 0.5,
                       LABELS.get(name, name.removesuffix("_kernel")),
                       ha="center", va="center", fontsize=6, clip_on=True)
    figure.tight_layout()
    figure.savefig(args.out, dpi=150, metadata={"Date": None})
    print(args.out)


if __name__ == "__main__":
    main()
