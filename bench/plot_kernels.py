#!/usr/bin/env python3
"""Draws docs/figures from figures of recurve-kernel-bench.

  bench/plot_kernels.py [--peers CSV] [--out DIR] RESULTS...

RESULTS are tables of bench/results, JSON files of the program, or folders of
these files. Where two hold the same operation and shape, the one named later
counts. A figure whose operation is in none of them is left alone. Needs
matplotlib; same input, same bytes.
"""

import argparse
import csv
import json
import pathlib
import re
import sys

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent
STYLE = {
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 9,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.5,
    "legend.frameon": False,
    "svg.fonttype": "none",  # text stays text: small files
    "svg.hashsalt": "recurve",
}
OURS = {"marker": "o", "markersize": 3.5, "linewidth": 1.6}
PEER = {"marker": "x", "markersize": 4, "linewidth": 0.9, "linestyle": "--"}
FLOOR = {"color": "#888888", "linewidth": 1.0, "linestyle": ":"}


class Results:
    """Rows by (operation, shape)."""

    def __init__(self, paths):
        self.rows = {}
        for path in map(pathlib.Path, paths):
            files = sorted(path.glob("*.json")) if path.is_dir() else [path]
            if not files:
                sys.exit(f"{path}: no JSON file")
            for file in files:
                if file.suffix == ".csv":
                    self.add_table(file)
                else:
                    for row in json.loads(file.read_text()).get("results", []):
                        self.rows[row["op"], row["shape"]] = row

    def add_table(self, path):
        with open(path, newline="") as file:
            for row in csv.DictReader(file):
                program, _, op = row["benchmark"].partition(" ")
                if program == "recurve-kernel-bench":
                    fields = self.rows.setdefault((op, row["shape"]), {})
                    fields[f"{row['what']}_us"] = float(row["value"])
                    fields["floor_us"] = float(row["floor"] or 0)

    def series(self, op, pattern, field):
        """Sorted (number in the shape, value) where the whole shape matches."""
        points = []
        for (row_op, shape), row in self.rows.items():
            match = re.fullmatch(pattern, shape)
            if row_op == op and match and field in row:
                points.append((int(match.group(1)), row[field]))
        return sorted(points)


class Peers:
    def __init__(self, path):
        with open(path, newline="") as file:
            self.rows = list(csv.DictReader(file))

    def series(self, op, pattern):
        """{implementation: sorted points}."""
        found = {}
        for row in self.rows:
            match = re.fullmatch(pattern, row["shape"])
            if row["op"] == op and match:
                point = (int(match.group(1)), float(row["median_us"]))
                found.setdefault(row["implementation"], []).append(point)
        return {name: sorted(points) for name, points in found.items()}


def draw(axes, points, label, **style):
    if points:
        axes.plot(*zip(*points), label=label, **style)


def log_axes(axes, ticks, x_label, y_label):
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)


def save(figure, axes, path):
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncol=4, fontsize=8)
    rows = (len(labels) + 3) // 4
    figure.tight_layout(rect=(0, 0.06 * rows, 1, 1))
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
    print(path)


def plot_tpa(results, peers, out):
    """Time against context, a panel a batch: H32 D128, rank 1."""
    shape = r"H32 D128 R1 B{} M(\d+)"
    forms = ("parallel_b", "parallel_bh", "parallel_bn")
    if not any(results.series(f"tpa_{form}", shape.format(8), "graph_us")
               for form in forms):
        return
    figure, panels = plt.subplots(1, 2, figsize=(8.4, 4.0), sharey=True)
    for axes, batch in zip(panels, (8, 32)):
        floors = {}
        for index, form in enumerate(forms):
            pattern = shape.format(batch)
            draw(axes, results.series(f"tpa_{form}", pattern, "graph_us"),
                 form, color=f"C{index}", **OURS)
            floors.update(results.series(f"tpa_{form}", pattern, "floor_us"))
        for index, (name, points) in enumerate(sorted(
                peers.series("tpa_decode", rf"B{batch} M(\d+)").items())):
            draw(axes, points, name, color=f"C{index + 3}", **PEER)
        draw(axes, sorted(floors.items()), "bytes at copy bandwidth", **FLOOR)
        axes.set_title(f"batch {batch}, 32 heads of 128, rank 1", fontsize=9)
        log_axes(axes, sorted(floors)[::2], "context (tokens)",
                 "µs a call" if batch == 8 else "")
    save(figure, panels[0], out / "tpa_decode.svg")


def plot_linear(results, peers, out):
    """The linear step against batch: time, and share of the floor."""
    shape = r"B(\d+) H32 D128 f32 silu rotate"
    ours = results.series("linear_step", shape, "graph_us")
    if not ours:
        return
    floor = dict(results.series("linear_step", shape, "floor_us"))
    lines = [("in place", ours, {"color": "C0", **OURS}),
             ("deferred (mean of a ring)",
              results.series("linear_deferred_step", shape, "chain_us"),
              {"color": "C1", **OURS})]
    for index, (name, points) in enumerate(sorted(
            peers.series("linear_decode", r"B(\d+) H32 D128 f32").items())):
        lines.append((name, points, {"color": f"C{index + 3}", **PEER}))
    figure, (time, share) = plt.subplots(1, 2, figsize=(8.4, 3.8))
    for label, points, style in lines:
        draw(time, points, label, **style)
        draw(share, [(x, 100 * floor[x] / y) for x, y in points if x in floor],
             label, **style)
    draw(time, sorted(floor.items()), "state read and written once", **FLOOR)
    share.axhline(100, **FLOOR)
    ticks = sorted(floor)
    log_axes(time, ticks, "batch", "µs a step")
    share.set_xscale("log", base=2)
    share.set_xticks(ticks, [str(tick) for tick in ticks])
    share.set_ylim(0)
    share.set_xlabel("batch")
    share.set_ylabel("floor / time (%)")
    time.set_title("32 heads, state 128 × 128 float32", fontsize=9)
    share.set_title("the same, as a share of the floor", fontsize=9)
    save(figure, time, out / "linear_step.svg")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("results", nargs="+")
    parser.add_argument("--peers", default=ROOT / "results/peers/h200.csv")
    parser.add_argument("--out", type=pathlib.Path,
                        default=ROOT.parent / "docs/figures")
    args = parser.parse_args()
    plt.rcParams.update(STYLE)
    results, peers = Results(args.results), Peers(args.peers)
    args.out.mkdir(parents=True, exist_ok=True)
    plot_tpa(results, peers, args.out)
    plot_linear(results, peers, args.out)


if __name__ == "__main__":
    main()
