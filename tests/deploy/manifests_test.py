"""Tests deploy/kubernetes and deploy/compose. Argument: the program
recurve-server, or nothing, which leaves out the tests that need it. Exit status
77, and a line that says why, where PyYAML or kubernetes-validate are missing.

No cluster and no network: schemas come with kubernetes-validate, overlays are
rendered by kubectl or kustomize where one is installed. Of custom resources,
which have no schema there, the references are checked."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import unittest
import urllib.request

try:
    import kubernetes_validate
    from manifest_files import (COMPOSE, ENTRIES, KUBERNETES, RULES, VALUES, flags_of,
                                kustomizations, load, manifests, of_kind, pod_specs, references,
                                render, render_with, renderer, seconds, servers, written)
except ImportError as error:
    print(f"skipped: {error} (pip install pyyaml kubernetes-validate)")
    sys.exit(77)

from metrics_docs import LATE, ROOT, dashboards, documented_metrics, names_in, series

SERVER = pathlib.Path(sys.argv.pop(1)) if len(sys.argv) > 1 else None
# The oldest version that docs/kubernetes.md names, and the newest known here.
VERSIONS = ("1.30", kubernetes_validate.latest_version())
CUSTOM = {"ServiceMonitor": "monitoring.coreos.com/v1",
          "PrometheusRule": "monitoring.coreos.com/v1",
          "Gateway": "gateway.networking.k8s.io/v1",
          "GRPCRoute": "gateway.networking.k8s.io/v1",
          "BackendTrafficPolicy": "gateway.envoyproxy.io/v1alpha1"}
# What the end of the server takes after its drain, at most.
END_SECONDS = 5


class Files(unittest.TestCase):
    def test_every_file_is_used_and_every_use_is_a_file(self):
        used = {VALUES}
        for folder, k in kustomizations().items():
            used.add(folder / "kustomization.yaml")
            for key in ("resources", "components"):
                for name in k.get(key, []):
                    path = (folder / name).resolve()
                    self.assertTrue(path.exists(), f"{folder}: {name}")
                    used.add(path)
            for patch in k.get("patches", []):
                if "path" in patch:
                    path = folder / patch["path"]
                    self.assertTrue(path.is_file(), path)
                    used.add(path)
        self.assertEqual(set(), set(KUBERNETES.rglob("*.yaml")) - used)

    def test_what_the_guide_names_exists(self):
        text = (ROOT / "docs/kubernetes.md").read_text()
        paths = set(re.findall(r"(?<!tests/)\bdeploy/[\w./-]*\w", text))
        self.assertGreater(len(paths), 5)
        for path in paths:
            self.assertTrue((ROOT / path).exists(), path)
        components = [f"components/{p.name}" for p in (KUBERNETES / "components").iterdir()]
        self.assertGreater(len(components), 3)
        for entry in [*ENTRIES, *components]:
            self.assertIn(f"deploy/kubernetes/{entry}", text)
        self.assertIn(f"Kubernetes {VERSIONS[0]}", text)

    def test_the_schemas(self):
        known = 0
        for where, manifest in manifests():
            kind = manifest["kind"]
            if kind in CUSTOM:
                self.assertEqual(CUSTOM[kind], manifest["apiVersion"], where)
                continue
            for version in VERSIONS:
                with self.subTest(where=where, kind=kind, version=version):
                    kubernetes_validate.validate(manifest, version, strict=True)
                    known += 1
        self.assertGreater(known, 10)

    @unittest.skipUnless(renderer(), "neither kustomize nor kubectl to render with")
    def test_rendered_objects_are_in_one_namespace_and_unique(self):
        for entry in ENTRIES:
            keys = [(m["kind"], m["metadata"]["name"]) for _, m in render(entry)]
            self.assertEqual(len(keys), len(set(keys)), entry)
            for where, m in render(entry):
                name = m["metadata"]["name" if m["kind"] == "Namespace" else "namespace"]
                self.assertEqual("recurve", name, where)

    @unittest.skipUnless(renderer(), "neither kustomize nor kubectl to render with")
    def test_the_example_sets_image_and_leaves_replicas_to_the_autoscaler(self):
        ((_, deployment),) = of_kind("Deployment", render("example"))
        self.assertNotIn("replicas", deployment["spec"])
        image = deployment["spec"]["template"]["spec"]["containers"][0]["image"]
        self.assertNotIn("VERSION", image)
        ((_, deployment),) = of_kind("Deployment", render("overlays/cuda"))
        limits = deployment["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]
        self.assertEqual("1", limits["nvidia.com/gpu"])


class Pods(unittest.TestCase):
    def test_nothing_is_privileged(self):
        specs = pod_specs()
        self.assertGreaterEqual(len(specs), 2)
        for where, spec in specs:
            with self.subTest(where):
                self.assertIs(False, spec["automountServiceAccountToken"])
                context = spec["securityContext"]
                self.assertIs(True, context["runAsNonRoot"])
                self.assertGreater(context["runAsUser"], 0)
                self.assertEqual("RuntimeDefault", context["seccompProfile"]["type"])
                for container in spec["containers"]:
                    own = container["securityContext"]
                    self.assertIs(False, own["allowPrivilegeEscalation"])
                    self.assertIs(True, own["readOnlyRootFilesystem"])
                    self.assertEqual({"drop": ["ALL"]}, own["capabilities"])
                    self.assertIn("memory", container["resources"]["limits"])

    def test_the_model_is_read_only_and_where_the_flag_says(self):
        for where, deployment, container in servers():
            with self.subTest(where):
                (mount,) = container["volumeMounts"]
                self.assertIs(True, mount["readOnly"])
                model = pathlib.PurePath(flags_of(container)["model"])
                self.assertIn(pathlib.PurePath(mount["mountPath"]), model.parents)
                (volume,) = deployment["spec"]["template"]["spec"]["volumes"]
                self.assertEqual(mount["name"], volume["name"])
                claim = volume["persistentVolumeClaim"]
                self.assertIs(True, claim["readOnly"])
                names = {m["metadata"]["name"] for _, m in of_kind("PersistentVolumeClaim")}
                self.assertIn(claim["claimName"], names)

    def test_service_links_do_not_become_flags(self):
        for where, deployment, _ in servers():
            self.assertIs(
                False, deployment["spec"]["template"]["spec"].get("enableServiceLinks"), where)

    def test_every_flag_can_be_patched(self):
        # Patches set variables, which an argument would win over.
        for where, _, container in servers():
            self.assertNotIn("args", container, where)
            self.assertLessEqual({"model", "host", "grpc-port", "http-port", "metrics-port",
                                  "shutdown-timeout", "step-timeout"},
                                 set(flags_of(container)), where)

    def test_a_roll_out_may_take_as_long_as_a_start(self):
        for where, deployment, container in servers():
            start = container["startupProbe"]
            self.assertGreater(deployment["spec"]["progressDeadlineSeconds"],
                               start["periodSeconds"] * start["failureThreshold"], where)

    def test_ports_are_those_of_the_flags(self):
        for where, _, container in servers():
            with self.subTest(where):
                flags = flags_of(container)
                self.assertEqual("0.0.0.0", flags["host"])
                self.assertEqual({"grpc": int(flags["grpc-port"]),
                                  "metrics": int(flags["metrics-port"])},
                                 {p["name"]: p["containerPort"] for p in container["ports"]})

    def test_liveness_is_not_asked_where_clients_may_hold_all_connections(self):
        # Those of the gRPC port are for its clients; a probe that gets none there
        # would end a server that is busy.
        for where, _, container in servers():
            with self.subTest(where):
                live = container["livenessProbe"]
                self.assertEqual({"path": "/health", "port": "metrics"}, live.get("httpGet"))
                ports = {p["name"]: p["containerPort"] for p in container["ports"]}
                self.assertEqual(int(flags_of(container)["metrics-port"]), ports["metrics"])
        # Nor is any client let to the port that it is asked on.
        (policy,) = [m for where, m in of_kind("NetworkPolicy", written())
                     if where.endswith("base/networkpolicy.yaml")]
        for rule in policy["spec"]["ingress"]:
            self.assertEqual(["grpc"], [p["port"] for p in rule["ports"]])

    def test_probes_ask_a_service_of_the_server_on_its_port(self):
        services = {""}
        for proto in (ROOT / "proto/recurve/v1").glob("*.proto"):
            text = proto.read_text()
            package = re.search(r"^package (.+);", text, re.M)[1]
            services |= {f"{package}.{s}" for s in re.findall(r"^service (\w+)", text, re.M)}
        self.assertIn("recurve.v1.Inference", services)
        for where, _, container in servers():
            port = int(flags_of(container)["grpc-port"])
            for name in ("startupProbe", "readinessProbe"):
                with self.subTest(where=where, probe=name):
                    probe = container[name]
                    self.assertEqual(port, probe["grpc"]["port"])
                    self.assertIn(probe["grpc"].get("service", ""), services)

    def test_a_drain_ends_before_it_is_killed(self):
        for where, deployment, container in servers():
            with self.subTest(where):
                drain = int(flags_of(container)["shutdown-timeout"])
                before = container["lifecycle"]["preStop"]["sleep"]["seconds"]
                grace = deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
                self.assertGreater(before, 0)
                self.assertLessEqual(before + drain + END_SECONDS, grace)
                # A drain on request is NOT_SERVING for as long.
                live = container["livenessProbe"]
                self.assertGreater(live["periodSeconds"] * live["failureThreshold"], drain)

    def test_threads_are_the_cores_of_the_limit(self):
        for where, _, container in servers():
            with self.subTest(where):
                env = {e["name"]: e for e in container["env"]}
                self.assertEqual(
                    "limits.cpu",
                    env["RECURVE_NUM_THREADS"]["valueFrom"]["resourceFieldRef"]["resource"])
                self.assertIn("cpu", container["resources"]["limits"])


@unittest.skipUnless(renderer(), "neither kustomize nor kubectl to render with")
class Tls(unittest.TestCase):
    def setUp(self):
        self.found = render_with("tls")
        ((_, self.deployment, self.container),) = servers(self.found)

    def test_it_is_valid(self):
        for version in VERSIONS:
            for where, manifest in self.found:
                with self.subTest(kind=manifest["kind"], version=version):
                    kubernetes_validate.validate(manifest, version, strict=True)

    def test_probes_are_over_the_port_that_stays_plaintext(self):
        ports = {p["name"]: p["containerPort"] for p in self.container["ports"]}
        ((_, _, plain),) = servers(render("overlays/cpu"))
        for name in ("startupProbe", "readinessProbe", "livenessProbe"):
            probe = self.container[name]
            self.assertEqual({"path": "/health", "port": "metrics"}, probe["httpGet"], name)
            # Nothing else changes, its patience above all.
            how = {"grpc", "httpGet"}
            self.assertEqual({k: v for k, v in plain[name].items() if k not in how},
                             {k: v for k, v in probe.items() if k not in how}, name)
            self.assertNotIn("grpc", probe, name)
        self.assertEqual(int(flags_of(self.container)["metrics-port"]), ports["metrics"])

    def test_the_certificate_is_where_the_flags_say(self):
        flags = flags_of(self.container)
        mounts = {m["name"]: m for m in self.container["volumeMounts"]}
        self.assertIs(True, mounts["tls"]["readOnly"])
        # The names that a secret of the kind kubernetes.io/tls has.
        self.assertEqual([f"{mounts['tls']['mountPath']}/{x}" for x in ("tls.crt", "tls.key")],
                         [flags["tls-cert"], flags["tls-key"]])
        for variable in ("RECURVE_TLS_CERT", "RECURVE_TLS_KEY"):
            self.assertIn(f"| `{variable}` |", (ROOT / "docs/cli.md").read_text())
        volumes = {v["name"]: v for v in self.deployment["spec"]["template"]["spec"]["volumes"]}
        secret = volumes["tls"]["secret"]["secretName"]
        self.assertIn(f"create secret tls {secret} ", (ROOT / "docs/kubernetes.md").read_text())

    def test_services_do_not_say_that_they_are_plaintext(self):
        for _, service in of_kind("Service", self.found):
            for port in service["spec"]["ports"]:
                self.assertNotIn("appProtocol", port)


class References(unittest.TestCase):
    def setUp(self):
        found = written()
        (_, self.deployment), = of_kind("Deployment", found)
        self.labels = self.deployment["spec"]["template"]["metadata"]["labels"]
        container = self.deployment["spec"]["template"]["spec"]["containers"][0]
        self.ports = {p["name"]: p["containerPort"] for p in container["ports"]}
        self.services = {m["metadata"]["name"]: m for _, m in of_kind("Service", found)}
        self.found = found

    def one(self, kind):
        (_, manifest), = of_kind(kind, self.found)
        return manifest

    def test_selectors_select_the_pods(self):
        selected = 0
        for where, m in self.found:
            selector = {"Deployment": lambda: m["spec"]["selector"]["matchLabels"],
                        "Service": lambda: m["spec"]["selector"],
                        "PodDisruptionBudget": lambda: m["spec"]["selector"]["matchLabels"],
                        "NetworkPolicy": lambda: m["spec"]["podSelector"]["matchLabels"],
                        }.get(m["kind"])
            if selector:
                self.assertLessEqual(selector().items(), self.labels.items(), where)
                selected += 1
        self.assertGreaterEqual(selected, 7)

    def test_services_lead_to_ports_of_the_pod(self):
        self.assertEqual("None", self.services["recurve-headless"]["spec"]["clusterIP"])
        self.assertNotIn("clusterIP", self.services["recurve"]["spec"])
        for name, service in self.services.items():
            for port in service["spec"]["ports"]:
                self.assertEqual(self.ports[port["targetPort"]], port["port"], name)

    def test_policies_open_ports_of_the_pod_to_somebody_named(self):
        policies = of_kind("NetworkPolicy", self.found)
        self.assertEqual(3, len(policies))
        for where, policy in policies:
            for rule in policy["spec"]["ingress"]:
                self.assertTrue(rule["from"], where)
                for peer in rule["from"]:
                    for selector in peer.values():
                        self.assertTrue(selector["matchLabels"], where)
                for port in rule["ports"]:
                    self.assertIn(port["port"], self.ports, where)
        base = dict(policies)["deploy/kubernetes/base/networkpolicy.yaml"]["spec"]
        self.assertEqual(["Ingress", "Egress"], base["policyTypes"])
        self.assertEqual([], base["egress"])

    def test_the_autoscaler_scales_the_deployment_by_metrics_that_the_adapter_has(self):
        spec = self.one("HorizontalPodAutoscaler")["spec"]
        target = spec["scaleTargetRef"]
        self.assertEqual((self.deployment["kind"], self.deployment["metadata"]["name"]),
                         (target["kind"], target["name"]))
        metrics = {m["pods"]["metric"]["name"] for m in spec["metrics"]}
        self.assertEqual({"recurve_num_requests_waiting", "recurve_kv_cache_usage_perc"}, metrics)
        rules = load(VALUES)["rules"]["custom"]
        self.assertEqual(metrics, {r["seriesQuery"].split("{")[0] for r in rules})
        for rule in rules:
            self.assertEqual({"namespace", "pod"}, set(rule["resources"]["overrides"]))

    def test_the_alerts_of_kubernetes_are_those_of_compose(self):
        self.assertEqual(load(RULES), self.one("PrometheusRule")["spec"])

    def test_alerts_ask_for_the_job_that_the_scrapes_have(self):
        jobs = set(re.findall(r'job="([^"]*)"', RULES.read_text()))
        (scrape,) = load(COMPOSE / "prometheus/prometheus.yml")["scrape_configs"]
        self.assertEqual({scrape["job_name"]}, jobs)
        label = self.one("ServiceMonitor")["spec"]["jobLabel"]
        self.assertEqual(
            jobs, {self.services["recurve-headless"]["metadata"]["labels"][label]})

    def test_the_service_monitor_finds_each_pod_once(self):
        spec = self.one("ServiceMonitor")["spec"]
        labels = spec["selector"]["matchLabels"].items()
        (service,) = [s for s in self.services.values()
                      if labels <= s["metadata"]["labels"].items()]
        (endpoint,) = spec["endpoints"]
        self.assertIn(endpoint["port"], {p["name"] for p in service["spec"]["ports"]})
        self.assertEqual("/metrics", endpoint["path"])

    def test_the_gateway_routes_what_clients_call_and_no_switches(self):
        gateway, route = self.one("Gateway"), self.one("GRPCRoute")
        for listener in gateway["spec"]["listeners"]:
            self.assertEqual(("HTTPS", "Terminate"),
                             (listener["protocol"], listener["tls"]["mode"]))
            self.assertTrue(listener["tls"]["certificateRefs"])
        self.assertEqual([{"name": gateway["metadata"]["name"]}], route["spec"]["parentRefs"])
        (rule,) = route["spec"]["rules"]
        wanted = []
        for service in ("Inference", "Control"):
            proto = (ROOT / f"proto/recurve/v1/{service.lower()}.proto").read_text()
            wanted += [(f"recurve.v1.{service}", method)
                       for method in re.findall(r"^  rpc (\w+)\(", proto, re.M)]
        for switch in ("Abort", "Drain"):
            wanted.remove(("recurve.v1.Control", switch))
        wanted.append(("grpc.health.v1.Health", "Check"))
        self.assertEqual([{"method": {"type": "Exact", "service": service, "method": method}}
                          for service, method in wanted], rule["matches"])
        (backend,) = rule["backendRefs"]
        self.assertIn(backend["port"],
                      {p["port"] for p in self.services[backend["name"]]["spec"]["ports"]})

    def test_affinity_is_by_header_and_streams_are_not_cut_off(self):
        spec = self.one("BackendTrafficPolicy")["spec"]
        self.assertEqual([{"group": "gateway.networking.k8s.io", "kind": "GRPCRoute",
                           "name": self.one("GRPCRoute")["metadata"]["name"]}],
                         spec["targetRefs"])
        self.assertEqual({"type": "ConsistentHash",
                          "consistentHash": {"type": "Header",
                                             "header": {"name": "x-session-token"}}},
                         spec["loadBalancer"])
        self.assertEqual("0s", spec["timeout"]["http"]["requestTimeout"])
        self.assertIn("x-session-token", (ROOT / "docs/kubernetes.md").read_text())


class Compose(unittest.TestCase):
    def setUp(self):
        self.services = load(COMPOSE / "docker-compose.yml")["services"]
        self.server = self.services["recurve"]
        self.flags = flags_of(self.server)

    def test_ports_are_of_loopback_alone(self):
        ports = [p for s in self.services.values() for p in s["ports"]]
        self.assertEqual(4, len(ports))
        for port in ports:
            self.assertRegex(port, r"^127\.0\.0\.1:\d+:\d+$")
        self.assertIn(f"127.0.0.1:50051:{self.flags['grpc-port']}", self.server["ports"])
        self.assertIn(f"127.0.0.1:8000:{self.flags['http-port']}", self.server["ports"])

    def test_the_server_is_unprivileged_and_reads_its_model_only(self):
        self.assertRegex(self.server["user"], r"^[1-9]\d*:[1-9]\d*$")
        self.assertIs(True, self.server["read_only"])
        (mount,) = self.server["volumes"]
        self.assertIs(True, mount["read_only"])
        self.assertEqual(self.flags["model"], mount["target"])
        default = re.search(r":-(.*)}", mount["source"])[1]
        self.assertTrue((COMPOSE / default / "config.json").is_file())
        for name, service in self.services.items():
            self.assertEqual(["ALL"], service["cap_drop"], name)
            self.assertEqual(["no-new-privileges:true"], service["security_opt"], name)

    def test_a_drain_ends_before_it_is_killed(self):
        self.assertGreaterEqual(seconds(self.server["stop_grace_period"]),
                                int(self.flags["shutdown-timeout"]) + END_SECONDS)

    def test_the_health_check_asks_the_port(self):
        self.assertEqual(
            ["CMD", "recurve-client", "health", "--server",
             f"127.0.0.1:{self.flags['grpc-port']}"], self.server["healthcheck"]["test"])

    def test_prometheus_scrapes_the_server_and_grafana_asks_prometheus(self):
        (job,) = load(COMPOSE / "prometheus/prometheus.yml")["scrape_configs"]
        self.assertEqual([f"recurve:{self.flags['metrics-port']}"],
                         job["static_configs"][0]["targets"])
        self.assertIn("./prometheus:/etc/prometheus:ro", self.services["prometheus"]["volumes"])
        (source,) = load(
            COMPOSE / "grafana/provisioning/datasources/prometheus.yml")["datasources"]
        self.assertEqual("http://prometheus:9090", source["url"])
        (provider,) = load(
            COMPOSE / "grafana/provisioning/dashboards/recurve.yml")["providers"]
        mounts = dict(v.split(":")[:2][::-1] for v in self.services["grafana"]["volumes"])
        self.assertEqual("./grafana/dashboards", mounts[provider["options"]["path"]])
        home = self.services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
        self.assertIn(pathlib.PurePath(home).name, {p.name for p in dashboards()})
        for service in self.services.values():
            for volume in service["volumes"]:
                if isinstance(volume, str) and volume.startswith("./"):
                    self.assertTrue((COMPOSE / volume.split(":")[0]).exists(), volume)


class HandOff(unittest.TestCase):
    """The two servers of deploy/compose/handoff.yml."""

    def setUp(self):
        self.services = load(COMPOSE / "handoff.yml")["services"]
        self.one = load(COMPOSE / "docker-compose.yml")["services"]["recurve"]

    def test_they_run_as_the_server_of_the_other_file(self):
        self.assertEqual(2, len(self.services))
        for name, server in self.services.items():
            for key in ("image", "build", "entrypoint", "volumes", "healthcheck", "user",
                        "read_only", "cap_drop", "security_opt", "stop_grace_period"):
                self.assertEqual(self.one[key], server[key], f"{name} {key}")
            flags = flags_of(server)
            (port,) = server["ports"]
            self.assertRegex(port, rf"^127\.0\.0\.1:\d+:{flags['grpc-port']}$")
            self.assertNotEqual("0", flags["prefix-cache-bytes"])

    def test_the_page_names_their_ports(self):
        page = (ROOT / "docs/state.md").read_text()
        ports = [s["ports"][0].rsplit(":", 1)[0] for s in self.services.values()]
        self.assertIn(f"recurve-client handoff {' '.join(ports)}", page)


class Image(unittest.TestCase):
    """The Dockerfile against those who run it."""

    def setUp(self):
        text = (ROOT / "deploy/container/Dockerfile").read_text()
        self.lines = [line for line in text.replace("\\\n", "").splitlines()
                      if line and not line.startswith("#")]

    def one(self, instruction):
        (line,) = [x for x in self.lines if x.startswith(instruction + " ")]
        return line.removeprefix(instruction + " ")

    def test_it_runs_as_the_user_of_the_manifests(self):
        user = self.one("USER")
        self.assertEqual(load(COMPOSE / "docker-compose.yml")["services"]["recurve"]["user"], user)
        for where, spec in pod_specs():
            context = spec["securityContext"]
            self.assertEqual(user, f"{context['runAsUser']}:{context['runAsGroup']}", where)

    def test_its_programs_are_those_that_are_called(self):
        compose = load(COMPOSE / "docker-compose.yml")["services"]["recurve"]
        entry = json.loads(self.one("ENTRYPOINT"))
        self.assertEqual(compose["entrypoint"], entry)
        for where, _, container in servers():
            self.assertEqual(container["command"], entry, where)
        health = json.loads(self.one("HEALTHCHECK").split(" CMD ")[1])
        self.assertEqual(compose["healthcheck"]["test"][1:3], health)
        packed = (ROOT / "deploy/container/pack.sh").read_text()
        for program in (entry[0], health[0]):
            self.assertRegex(packed, rf"for program in .*\b{program}\b")

    def test_only_files_are_in_it(self):
        stages = [x.split()[1] for x in self.lines if x.startswith("FROM ")]
        self.assertEqual(["${BASE}", "build", "scratch", "image-cpu", "image-${VARIANT}"], stages)

    def test_its_own_model_is_not_where_others_are_mounted(self):
        # A volume that is not there must not look like a model.
        environment = [x for x in self.lines if x.startswith("ENV ")]
        model = re.search(r"RECURVE_MODEL=(\S+)", " ".join(environment))[1]
        (mount,) = load(COMPOSE / "docker-compose.yml")["services"]["recurve"]["volumes"]
        self.assertNotEqual(model, mount["target"])
        self.assertTrue((ROOT / "deploy" / model.lstrip("/") / "config.json").is_file())

    def test_compose_builds_what_it_names(self):
        service = load(COMPOSE / "docker-compose.yml")["services"]["recurve"]
        version = re.search(r"project\(recurve VERSION (\S+)",
                            (ROOT / "CMakeLists.txt").read_text())[1]
        self.assertEqual(f"${{RECURVE_IMAGE:-recurve:{version}}}", service["image"])
        context = COMPOSE / service["build"]["context"]
        self.assertEqual(ROOT, context.resolve())
        self.assertTrue((context / service["build"]["dockerfile"]).is_file())

    def test_what_is_sent_to_the_build_is_what_cmake_reads(self):
        kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines()
                if line.startswith("!")}
        for name in kept:
            self.assertTrue((ROOT / name).exists(), name)
        cmake = (ROOT / "CMakeLists.txt").read_text()
        folders = {x.split("/")[0] for x in re.findall(r"^ *(?:add_subdirectory|include)\((\w+)",
                                                       cmake, re.M)}
        self.assertEqual(set(), folders - kept - {"bench", "tests"})


class Metrics(unittest.TestCase):
    def test_every_name_is_documented(self):
        known = series(documented_metrics())
        self.assertIn("recurve_batch_size_bucket", known)
        for where, text in references():
            with self.subTest(where):
                self.assertTrue(names_in(text), text)
                self.assertEqual(set(), names_in(text) - known)


@unittest.skipUnless(SERVER, "no recurve-server given")
class WithServer(unittest.TestCase):
    def test_flags_and_variables_exist(self):
        text = subprocess.run([SERVER, "--help"], text=True, capture_output=True, check=True,
                              timeout=60).stdout
        flags = dict(re.findall(r"^  --([a-z-]+).*\(Env:(RECURVE_\w+)\)", text, re.M))
        self.assertIn("model", flags)
        compose = load(COMPOSE / "docker-compose.yml")["services"]["recurve"]
        self.assertEqual(set(), set(compose["environment"]) - set(flags.values()))
        for where, _, container in servers():
            own = {e["name"] for e in container["env"]}
            self.assertEqual(set(), own - set(flags.values()), where)

    def start(self, flags):
        flags = {**flags, "model": str(ROOT / "deploy/models/demo"), "host": "127.0.0.1",
                 "grpc-port": "0", "http-port": "-1", "metrics-port": "0"}
        variables = {f"RECURVE_{f.upper().replace('-', '_')}": v for f, v in flags.items()}
        process = subprocess.Popen(
            [SERVER], text=True, stdout=subprocess.PIPE,
            env={**os.environ, **variables, "RECURVE_NUM_THREADS": "1"})
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        lines = [process.stdout.readline(), process.stdout.readline()]
        self.assertRegex(lines[1], r"^listening grpc=")
        return process, lines[0].strip().removeprefix("listening metrics=")

    def test_it_starts_with_these_flags_serves_these_metrics_and_drains(self):
        compose = load(COMPOSE / "docker-compose.yml")["services"]["recurve"]
        (_, deployment), = of_kind("Deployment", written())
        container = deployment["spec"]["template"]["spec"]["containers"][0]
        for of in (compose, container):
            process, http = self.start(flags_of(of))
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
                    f"http://{http}/metrics", timeout=30) as response:
                served = names_in(response.read().decode())
            for where, text in references():
                self.assertEqual(set(), names_in(text) - served - LATE, where)
            process.send_signal(signal.SIGTERM)
            self.assertEqual(0, process.wait(timeout=60))


if __name__ == "__main__":
    unittest.main()
