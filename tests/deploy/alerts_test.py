"""Has promtool check compose's alert rules, and run them over the series in
alerts_test.yml. Exit status 77, and a line that says why, where there is no promtool
(it comes with Prometheus). The rules of Kubernetes are the same: manifests_test.py."""

import pathlib
import re
import shutil
import subprocess
import sys
import unittest

PROMTOOL = shutil.which("promtool")
if not PROMTOOL:
    print("skipped: there is no promtool (apt-get install prometheus)")
    sys.exit(77)

HERE = pathlib.Path(__file__).resolve().parent
COMPOSE = HERE.parents[1] / "deploy/compose/prometheus"


class Alerts(unittest.TestCase):
    def promtool(self, *arguments):
        result = subprocess.run([PROMTOOL, *arguments], text=True, timeout=60,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual(0, result.returncode, result.stdout)

    def test_prometheus_reads_configuration_and_rules(self):
        self.promtool("check", "config", str(COMPOSE / "prometheus.yml"))
        self.promtool("check", "rules", str(COMPOSE / "rules.yml"))

    def test_they_fire_when_they_should_and_only_then(self):
        self.promtool("test", "rules", str(HERE / "alerts_test.yml"))

    def test_each_is_tested(self):
        rules = set(re.findall(r"- alert: (\w+)", (COMPOSE / "rules.yml").read_text()))
        tests = re.findall(r"alertname: (\w+)\n +exp_alerts: *(\[\])?",
                           (HERE / "alerts_test.yml").read_text())
        self.assertTrue(rules)
        self.assertEqual(rules, {name for name, nothing in tests if not nothing}, "firing")
        self.assertEqual(rules, {name for name, nothing in tests if nothing}, "not firing")


if __name__ == "__main__":
    unittest.main()
