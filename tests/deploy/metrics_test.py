"""Tests that a server, docs/metrics.md and the Grafana dashboards have the same
metrics. Argument: the program recurve-server, or nothing, which leaves out the test
that needs it. Needs Python alone, unlike manifests_test.py, so that a metric without
a panel is noticed wherever the tests run."""

import os
import pathlib
import re
import subprocess
import sys
import unittest
import urllib.request

from metrics_docs import (LATE, NAME, ROOT, dashboards, documented_metrics,
                          documented_values, expressions, names_in, series, variables)

SERVER = pathlib.Path(sys.argv.pop(1)) if len(sys.argv) > 1 else None


class Dashboards(unittest.TestCase):
    def test_every_name_is_documented(self):
        known = series(documented_metrics())
        self.assertIn("recurve_batch_size_bucket", known)
        for where, text in expressions() + variables():
            with self.subTest(where):
                self.assertTrue(names_in(text), text)
                self.assertEqual(set(), names_in(text) - known)

    def test_every_metric_is_shown(self):
        shown = set().union(*(names_in(e) for _, e in expressions()))
        wanted = {name + "_bucket" if section == "Histograms" else name
                  for name, section in documented_metrics().items()}
        self.assertEqual(set(), wanted - shown)

    def test_counters_and_histograms_are_shown_as_rates(self):
        kinds = documented_metrics()
        for where, expression in expressions():
            for name in names_in(expression):
                if kinds.get(name) == "Gauges":
                    self.assertNotIn(f"rate({name}", expression, where)
                else:
                    self.assertIn(f"rate({name}{{", expression, where)

    def test_panels_are_valid(self):
        for path, dashboard in dashboards().items():
            ids = [p["id"] for p in dashboard["panels"]]
            self.assertEqual(len(ids), len(set(ids)), path)
            cells = set()
            for panel in dashboard["panels"]:
                g = panel["gridPos"]
                self.assertLessEqual(g["x"] + g["w"], 24, panel["title"])
                own = {(x, y) for x in range(g["x"], g["x"] + g["w"])
                       for y in range(g["y"], g["y"] + g["h"])}
                self.assertEqual(set(), own & cells, panel["title"])
                cells |= own
            names = {v["name"] for v in dashboard["templating"]["list"]}
            for where, expression in expressions():
                self.assertLessEqual(
                    set(re.findall(r"\$(\w+)", expression)), names | {"__rate_interval"}, where)
                self.assertEqual(expression.count("("), expression.count(")"), where)


@unittest.skipUnless(SERVER, "no recurve-server given")
class WithServer(unittest.TestCase):
    def test_a_scrape_has_what_is_documented(self):
        process = subprocess.Popen(
            [SERVER, f"--model={ROOT}/deploy/models/demo", "--grpc-port=0", "--http-port=0",
             "--num-threads=1"],
            text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env={k: v for k, v in os.environ.items() if not k.startswith("RECURVE_")})
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        http = process.stdout.readline().strip().removeprefix("listening http=")
        self.assertRegex(process.stdout.readline(), r"^listening grpc=")
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
                f"http://{http}/metrics", timeout=30) as response:
            text = response.read().decode()
        served = {m for m in re.findall(rf"^({NAME})", text, re.M)}
        documented = series(documented_metrics())
        self.assertEqual(set(), served - documented)
        late = LATE | {name.removesuffix("_bucket") + s for name in LATE
                       for s in ("_sum", "_count") if name.endswith("_bucket")}
        self.assertEqual(set(), documented - served - late)
        refused = "recurve_requests_refused_total"
        self.assertEqual(documented_values(refused, "reason"),
                         set(re.findall(rf'^{refused}{{reason="(\w+)"}} 0$', text, re.M)))


if __name__ == "__main__":
    unittest.main()
