"""What docs/metrics.md and the Grafana dashboards say; used by the tests here."""

import json
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
DASHBOARDS = ROOT / "deploy/compose/grafana/dashboards"
NAME = r"(?:recurve|process)_[a-z0-9_]+"
# Series that appear with their first event.
LATE = {"recurve_request_success_total",
        "recurve_http_requests_total", "recurve_http_request_duration_seconds_bucket",
        "recurve_tenant_open_streams", "recurve_tenant_pages",
        "recurve_tenant_requests_admitted_total",
        "recurve_tenant_requests_refused_total", "recurve_unauthenticated_requests_total",
        "recurve_tls_certificate_expiry_timestamp_seconds"}


def documented_metrics():
    """{name: Gauges, Counters or Histograms} of docs/metrics.md"""
    result, section = {}, None
    for line in (ROOT / "docs/metrics.md").read_text().splitlines():
        if line.startswith("## "):
            section = line[3:]
        match = re.match(rf"\| `({NAME})` \|", line)
        if match:
            result[match[1]] = section
    return result


def documented_values(metric, label):
    """The values of the label that docs/metrics.md lists for the metric."""
    (line,) = [x for x in (ROOT / "docs/metrics.md").read_text().splitlines()
               if x.startswith(f"| `{metric}` |")]
    (values,) = re.findall(rf"`{label}`: ((?:`\w+`(?:, )?)+)", line)
    return set(re.findall(r"`(\w+)`", values))


def series(metrics):
    """The names that a scrape holds."""
    result = set()
    for name, section in metrics.items():
        result |= ({name + s for s in ("_bucket", "_sum", "_count")}
                   if section == "Histograms" else {name})
    return result


def dashboards():
    return {p: json.loads(p.read_text()) for p in sorted(DASHBOARDS.glob("*.json"))}


def expressions():
    """[(where, PromQL)] of all panels."""
    result = [(f"{path.name}: {panel['title']}", target["expr"])
              for path, dashboard in dashboards().items()
              for panel in dashboard["panels"]
              for target in panel.get("targets", [])]
    assert result
    return result


def variables():
    """[(where, query)] of the dashboards' variables that ask Prometheus."""
    return [(f"{path.name}: {v['name']}", json.dumps(v["query"]))
            for path, dashboard in dashboards().items()
            for v in dashboard["templating"]["list"] if v["type"] == "query"]


def names_in(text):
    return set(re.findall(rf"\b{NAME}", text))
