"""Runs a real Prometheus with compose's configuration against a server under load,
and asks it every query of the Grafana dashboard. Arguments: the programs
recurve-server and recurve-client. Exit status 77, and a line that says why, where
there is no `prometheus` or no PyYAML.

Changed in the configuration: where the server is, and the interval of scrapes, so
that this takes seconds. Everything listens on loopback."""

import hashlib
import json
import math
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.parse
import urllib.request

PROMETHEUS = shutil.which("prometheus")
if not PROMETHEUS:
    print("skipped: there is no prometheus (apt-get install prometheus)")
    sys.exit(77)
try:
    import yaml
except ImportError as error:
    print(f"skipped: {error} (pip install pyyaml)")
    sys.exit(77)

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMPOSE = ROOT / "deploy/compose"
SERVER, CLIENT = sys.argv[1:3]
del sys.argv[1:3]
KEY = "a-key-of-this-test-and-of-nothing-else"


def get(url):
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=10) as response:
        return response.read().decode()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def queries():
    """[(panel, query)] of the dashboard, of all servers, less those of servers with
    TLS, which the one here is not."""
    result = []
    for path in sorted((COMPOSE / "grafana/dashboards").glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel.get("targets", []):
                # Grafana's interval of rates is four scrapes.
                query = target["expr"].replace("$instance", ".*").replace("$__rate_interval", "4s")
                assert "$" not in query, query
                if "recurve_tls_" not in query:
                    result.append((panel["title"], query))
    return result


class Dashboard(unittest.TestCase):
    def start(self, command, **options):
        process = subprocess.Popen(command, text=True, **options)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def client(self, *arguments, key=KEY):
        environment = {k: v for k, v in os.environ.items() if k != "RECURVE_API_KEY"}
        if key:
            environment["RECURVE_API_KEY"] = key
        return subprocess.Popen([CLIENT, *arguments, "--server", self.grpc], env=environment,
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def value(self, query):
        """The samples of an instant query that are numbers."""
        text = get(f"{self.prometheus}/api/v1/query?" + urllib.parse.urlencode({"query": query}))
        answer = json.loads(text)
        self.assertEqual("success", answer["status"], query)
        values = [float(sample["value"][1]) for sample in answer["data"]["result"]]
        return [v for v in values if not math.isnan(v)]

    def test_every_panel_has_data_under_load(self):
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        digest = hashlib.sha256(KEY.encode()).hexdigest()
        (folder / "keys").write_text(f"acme sha256={digest} max_streams=8\n")
        server = self.start(
            [SERVER, "--model", str(ROOT / "deploy/models/demo"), "--grpc-port", "0",
             "--http-port", "0", "--metrics-port", "0", "--api-keys-file", str(folder / "keys"), "--kv-pages", "200"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.addCleanup(server.stdout.close)
        server.stdout.readline()  # of the API over HTTP
        metrics = server.stdout.readline().strip().removeprefix("listening metrics=")
        self.grpc = server.stdout.readline().strip().removeprefix("listening grpc=")

        configuration = yaml.safe_load((COMPOSE / "prometheus/prometheus.yml").read_text())
        configuration["global"]["scrape_interval"] = "1s"
        (job,) = configuration["scrape_configs"]
        (targets,) = job["static_configs"]
        self.assertRegex(targets["targets"][0], r"^recurve:\d+$")
        targets["targets"] = [metrics]
        (folder / "prometheus.yml").write_text(yaml.safe_dump(configuration))
        for name in configuration["rule_files"]:
            shutil.copy(COMPOSE / "prometheus" / name, folder)
        port = free_port()
        self.prometheus = f"http://127.0.0.1:{port}"
        with open(folder / "log", "w") as log:
            prometheus = self.start(
                [PROMETHEUS, f"--config.file={folder}/prometheus.yml",
                 f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{port}"],
                stdout=log, stderr=log)

        # More streams than the tenant may have, so that some are refused; some are
        # cancelled; and calls without a key.
        load = self.client("bench", "--concurrency", "9", "--duration", "120", "--max-errors",
                           "1000000", "--cancel-fraction", "0.2", "--output-tokens", "8:48")
        self.addCleanup(load.wait)
        self.addCleanup(load.kill)
        missing = queries()
        self.assertGreater(len(missing), 30)
        deadline = time.monotonic() + 100
        while missing and time.monotonic() < deadline:
            self.client("info", key=None).wait()
            time.sleep(1)
            self.assertIsNone(load.poll(), "the load has ended")
            self.assertIsNone(prometheus.poll(), (folder / "log").read_text())
            try:
                missing = [(panel, query) for panel, query in missing if not self.value(query)]
            except OSError:
                continue  # it is not up yet
        self.assertEqual([], missing, "these have no data")
        # Not zeros alone.
        for panel, query in queries():
            if re.search(r"generation_tokens_total|time_to_first_token|state_slots.*used", query):
                self.assertGreater(max(self.value(query)), 0, panel)
        groups = json.loads(get(f"{self.prometheus}/api/v1/rules"))["data"]["groups"]
        rules = [rule for group in groups for rule in group["rules"]]
        self.assertGreater(len(rules), 5)
        self.assertEqual([], [rule for rule in rules if rule["health"] == "err"])
        print(f"{len(queries())} queries of {len({p for p, _ in queries()})} panels have data")


if __name__ == "__main__":
    unittest.main()
