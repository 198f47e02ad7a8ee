"""The manifests of deploy/kubernetes, as written and as rendered by kubectl or kustomize
where one is installed; used by manifests_test.py. Needs PyYAML."""

import functools
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

import yaml

from metrics_docs import ROOT, expressions, variables

KUBERNETES = ROOT / "deploy/kubernetes"
COMPOSE = ROOT / "deploy/compose"
# Rendered, these are what a user applies.
ENTRIES = ("model", "overlays/cpu", "overlays/cuda", "example")
# Not a manifest: values of another project's chart.
VALUES = KUBERNETES / "components/autoscaling/prometheus-adapter-values.yaml"
RULES = COMPOSE / "prometheus/rules.yml"


def load_all(path):
    return [d for d in yaml.safe_load_all(path.read_text()) if d is not None]


def load(path):
    (document,) = load_all(path)
    return document


def kustomizations():
    return {p.parent: load(p) for p in KUBERNETES.rglob("kustomization.yaml")}


def written():
    """[(where, manifest)] of every file that a kustomization lists."""
    return [(f"{folder.relative_to(ROOT)}/{name}", manifest)
            for folder, k in kustomizations().items()
            for name in k.get("resources", []) if (folder / name).is_file()
            for manifest in load_all(folder / name)]


def renderer():
    for command in (["kustomize", "build"], ["kubectl", "kustomize"]):
        if shutil.which(command[0]):
            return command
    return None


@functools.lru_cache(maxsize=None)
def render(entry):
    # No configuration of a cluster is looked at.
    result = subprocess.run([*renderer(), os.path.join(KUBERNETES, entry)], text=True,
                            capture_output=True, timeout=60,
                            env={**os.environ, "KUBECONFIG": os.devnull})
    if result.returncode != 0:
        raise AssertionError(f"{entry}: {result.stderr}")
    return [(f"{entry} rendered", m) for m in yaml.safe_load_all(result.stdout)]


def render_with(component):
    """The overlay for CPUs with the component, from a folder elsewhere."""
    with tempfile.TemporaryDirectory() as folder:
        above = os.path.relpath(KUBERNETES, os.path.realpath(folder))
        (pathlib.Path(folder) / "kustomization.yaml").write_text(yaml.safe_dump({
            "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
            "resources": [f"{above}/overlays/cpu"],
            "components": [f"{above}/components/{component}"]}))
        return render(folder)


def manifests():
    """[(where, manifest)], as written and as rendered."""
    result = written()
    if renderer():
        for entry in ENTRIES:
            result += render(entry)
    return result


def of_kind(kind, found=None):
    return [(where, m) for where, m in (found or manifests()) if m["kind"] == kind]


def pod_specs():
    return ([(w, m["spec"]["template"]["spec"]) for w, m in of_kind("Deployment")] +
            [(w, m["spec"]) for w, m in of_kind("Pod")])


def servers(found=None):
    """[(where, Deployment, its container)]"""
    result = [(w, m, m["spec"]["template"]["spec"]["containers"][0])
              for w, m in of_kind("Deployment", found)]
    assert result
    return result


def flags_of(container):
    """{flag: value} of the variables of a container, of Kubernetes or of compose."""
    env = container.get("env") or [{"name": k, "value": v}
                                   for k, v in container["environment"].items()]
    names = [e["name"] for e in env]
    assert len(set(names)) == len(names), f"a variable twice in {names}"
    return {e["name"].removeprefix("RECURVE_").lower().replace("_", "-"): e["value"]
            for e in env if "value" in e}


def seconds(text):
    number, unit = re.fullmatch(r"(\d+)(s|m)", text).groups()
    return int(number) * {"s": 1, "m": 60}[unit]


def references():
    """[(where, text)]: whatever names a metric."""
    result = expressions() + variables()
    for rule in load(VALUES)["rules"]["custom"]:
        result.append((VALUES.name, json.dumps(rule)))
    for where, hpa in of_kind("HorizontalPodAutoscaler"):
        result += [(where, m["pods"]["metric"]["name"]) for m in hpa["spec"]["metrics"]]
    for group in load(RULES)["groups"]:
        # `up` is Prometheus' own.
        result += [(rule["alert"], rule["expr"]) for rule in group["rules"]
                   if not rule["expr"].startswith("up{")]
    return result
