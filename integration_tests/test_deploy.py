"""deploy/: manifests, rules and the dashboard, checked with the programs that read them and with the real
server.

Invariants: every variable that deploy/ sets is a flag of the server; every panel and rule uses metrics that
exist, and gets values from a Prometheus that scrapes the real server; manifests are valid for current
versions of Kubernetes. Tests whose program is missing are skipped with the reason.
"""

import json
import math
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread

import programs
import pytest
import requests
import yaml
from document_blocks import blocks
from kubernetes_validate import utils as kubernetes
from server import BINARY, ROOT, VERSION, Server, run, wait_until

DEPLOY = ROOT / "deploy"
COMPOSE = DEPLOY / "compose"
RULES = COMPOSE / "prometheus/rules.yaml"
DASHBOARD = json.loads((COMPOSE / "grafana/dashboards/text-embeddings-router.json").read_text(encoding="utf-8"))
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
TEIS = json.loads((ROOT / "integration_tests/tei_metrics.json").read_text(encoding="utf-8"))["families"]
CHART = DEPLOY / "helm"
# Variables for other programs in the containers.
FOREIGN_VARIABLES = {"HF_HUB_OFFLINE", "HF_TOKEN"}


def run_tool(*command: str) -> str:
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


@pytest.fixture(scope="module")
def variables() -> set[str]:
    """The variables of the server's flags."""
    return set(re.findall(r"\[env: (\w+)", run("--help").stdout))


# Values that change which manifests there are, or what is in them.
VALUES: dict[str, dict] = {
    "cpu": {"monitoring": True},
    "file": {"modelsFile": "[models.m]\nmodel-id = 'BAAI/bge-m3'\n", "monitoring": True},
    "gpu": {"gpu": True, "monitoring": True},
    "shared": {"weights": {"from": "shared", "storageClass": "nfs"}, "autoscaling": {"by": "keda"}, "expose": {"by": "gateway", "host": "rerank.example.org", "gateway": "public"}},
    "image": {
        "weights": {"from": "image"},
        "settings": {"MODEL_ID": "/model"},
        "autoscaling": {"by": "none"},
        "networkPolicy": {"enabled": True, "from": [{"namespaceSelector": {}}]},
        "expose": {"by": "ingress", "host": "rerank.example.org", "className": "nginx", "tlsSecret": "certificate"},
    },
}
# Kinds of operators, which have schemas of their own.
OF_OPERATORS = {"cpu": {"PrometheusRule", "ServiceMonitor"}, "file": {"PrometheusRule", "ServiceMonitor"}, "gpu": {"PrometheusRule", "ServiceMonitor"}, "shared": {"HTTPRoute", "ScaledObject"}, "image": set()}
# The chart adds its name to a release's name that lacks it.
RELEASE = "text-embeddings-router"


def rendered(folder: Path, values: dict) -> list[dict]:
    """The manifests that Helm would apply."""
    helm = programs.require("helm")
    (folder / "values.yaml").write_text(json.dumps(values))
    built = subprocess.run(
        [helm, "template", RELEASE, CHART, "--values", folder / "values.yaml"], capture_output=True, text=True, timeout=120
    )
    assert built.returncode == 0, built.stderr
    assert all("found symbolic link" in line for line in built.stderr.splitlines()), built.stderr
    return [document for document in yaml.safe_load_all(built.stdout) if document]


def by_name(documents: list[dict]) -> dict[str, dict]:
    found = {f"{document['kind']}/{document['metadata']['name']}": document for document in documents}
    assert len(found) == len(documents)
    return found


@pytest.fixture(scope="module", params=VALUES)
def values(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def manifests(values, tmp_path_factory) -> dict[str, dict]:
    """The manifests for values of the chart, by kind and name."""
    return by_name(rendered(tmp_path_factory.mktemp("chart"), VALUES[values]))


class TestKubernetes:
    def test_helm_finds_nothing_wrong(self):
        run_tool(programs.require("helm"), "lint", "--strict", str(CHART))

    def test_they_are_valid(self, manifests, values):
        unknown = set()
        for manifest in manifests.values():
            try:
                kubernetes.validate(manifest, kubernetes.latest_version(), strict=True)
            except kubernetes.SchemaNotFoundError:
                unknown.add(manifest["kind"])
        assert unknown == OF_OPERATORS[values]

    @staticmethod
    def pod(manifests: dict[str, dict]) -> dict:
        return manifests["Deployment/text-embeddings-router"]["spec"]["template"]["spec"]

    @staticmethod
    def settings(manifests: dict[str, dict]) -> dict[str, str]:
        return manifests["ConfigMap/text-embeddings-router"]["data"]

    def test_each_variable_is_a_flag_of_the_server(self, manifests, variables):
        pod = self.pod(manifests)
        named = set(self.settings(manifests))
        for container in (*pod.get("initContainers", ()), *pod["containers"]):
            named |= {variable["name"] for variable in container.get("env", ())}
        assert named - FOREIGN_VARIABLES <= variables

    def test_a_pod_has_the_time_to_end(self, manifests):
        pod, settings = self.pod(manifests), self.settings(manifests)
        before = pod["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
        needed = before + int(settings["SHUTDOWN_DELAY"]) + int(settings["DRAIN_TIMEOUT"])
        assert needed < pod["terminationGracePeriodSeconds"]
        readiness = pod["containers"][0]["readinessProbe"]
        # Clients that probe the pod directly notice that it is not ready before its port closes.
        assert readiness["periodSeconds"] < int(settings["SHUTDOWN_DELAY"])

    def test_each_program_of_a_gpu_build_finds_the_driver(self, manifests):
        """The driver may be only in containers that ask for a GPU."""
        pod = self.pod(manifests)
        limits = [container["resources"]["limits"] for container in pod.get("initContainers", []) + pod["containers"]]
        assert len({limit.get("nvidia.com/gpu") for limit in limits}) == 1

    def test_ports_and_probes_are_the_servers(self, manifests, served):
        pod, settings = self.pod(manifests), self.settings(manifests)
        (container,) = pod["containers"]
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert ports == {"http": int(settings["PORT"]), "grpc": int(settings["GRPC_PORT"]), "metrics": int(settings["PROMETHEUS_PORT"])}
        server = served("demo")
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert container[probe]["httpGet"]["port"] == "http"
            assert server.get(container[probe]["httpGet"]["path"]).status_code == 200
        for name in ("text-embeddings-router", "text-embeddings-router-pods"):
            assert {port["targetPort"] for port in manifests[f"Service/{name}"]["spec"]["ports"]} <= set(ports)

    def test_nothing_runs_as_root_or_writes_but_to_its_volumes(self, manifests):
        pod = self.pod(manifests)
        assert pod["securityContext"]["runAsNonRoot"] is True and pod["automountServiceAccountToken"] is False
        for container in (*pod.get("initContainers", ()), *pod["containers"]):
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"] and not security["allowPrivilegeEscalation"], container["name"]
            assert security["capabilities"]["drop"] == ["ALL"]
            mounts = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
            assert mounts == {"/data", "/tmp"}
            assert {"cpu", "memory"} <= set(container["resources"]["requests"]) and "memory" in container["resources"]["limits"]

    def test_every_selector_finds_the_pods(self, manifests):
        labels = manifests["Deployment/text-embeddings-router"]["spec"]["template"]["metadata"]["labels"].items()
        pods = "Service/text-embeddings-router-pods"
        selectors = [manifest["spec"]["selector"] for name, manifest in manifests.items() if name.startswith("Service/")]
        selectors += [manifests[f"{kind}/text-embeddings-router"]["spec"]["selector"]["matchLabels"] for kind in ("Deployment", "PodDisruptionBudget")]
        spreading = self.pod(manifests)["topologySpreadConstraints"]
        selectors += [constraint["labelSelector"]["matchLabels"] for constraint in spreading]
        assert len(selectors) == 6 and all(selector.items() <= labels for selector in selectors), selectors
        if "ServiceMonitor/text-embeddings-router" not in manifests:
            return
        monitor = manifests["ServiceMonitor/text-embeddings-router"]["spec"]
        assert monitor["selector"]["matchLabels"].items() <= manifests[pods]["metadata"]["labels"].items()
        (other,) = [name for name in manifests if name.startswith("Service/") and name != pods]
        # Otherwise Prometheus would scrape each pod twice.
        assert not monitor["selector"]["matchLabels"].items() <= manifests[other]["metadata"].get("labels", {}).items()
        ports = {port["name"] for port in manifests[pods]["spec"]["ports"]}
        assert {endpoint["port"] for endpoint in monitor["endpoints"]} <= ports

    def test_the_autoscaler_reads_the_metrics_of_the_adapter(self, manifests, values):
        deployment = manifests["Deployment/text-embeddings-router"]["spec"]
        assert ("replicas" in deployment) == (values == "image")
        if values == "shared":
            queries = " ".join(trigger["metadata"]["query"] for trigger in manifests["ScaledObject/text-embeddings-router"]["spec"]["triggers"])
            assert "te_device_busy_seconds_total" in queries and "te_queue_oldest_age_seconds" in queries
        elif values != "image":
            rules = yaml.safe_load((CHART / "adapter-rules.yaml").read_text())["rules"]
            scaled = manifests["HorizontalPodAutoscaler/text-embeddings-router"]["spec"]
            assert {metric["pods"]["metric"]["name"] for metric in scaled["metrics"]} == {rule["name"]["as"] for rule in rules}
            assert [metric["pods"]["target"]["averageValue"] for metric in scaled["metrics"]] == ["700m", "2000m"]
            assert scaled["scaleTargetRef"]["name"] == "text-embeddings-router"

    def test_where_the_weights_come_from(self, manifests, values):
        pod = self.pod(manifests)
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        claim = "PersistentVolumeClaim/text-embeddings-router-models"
        assert (claim in manifests) == ("persistentVolumeClaim" in volumes["models"]) == (values == "shared")
        assert ("initContainers" in pod) == (values != "image")

    def test_a_gpu_has_an_image_of_its_own(self, manifests, values):
        (container,) = self.pod(manifests)["containers"]
        assert container["image"] == f"text-embeddings-router:{VERSION}" + ("-cuda" if values == "gpu" else "")

    def test_the_routes_lead_to_the_service(self, manifests, values):
        if values == "shared":
            spec = manifests["HTTPRoute/text-embeddings-router"]["spec"]
            assert spec["rules"] == [{"backendRefs": [{"name": "text-embeddings-router", "port": 80}]}] and spec["parentRefs"] == [{"name": "public"}]
        elif values == "image":
            (rule,) = manifests["Ingress/text-embeddings-router"]["spec"]["rules"]
            assert rule["http"]["paths"][0]["backend"] == {"service": {"name": "text-embeddings-router", "port": {"name": "http"}}}
        else:
            assert not {name for name in manifests if name.startswith(("Ingress/", "HTTPRoute/"))}

    def test_the_test_asks_the_server(self, manifests, served):
        (container,) = manifests["Pod/text-embeddings-router-test"]["spec"]["containers"]
        url = container["args"].index("--url") + 1
        assert container["args"][url] == "http://text-embeddings-router"
        ended = run(*container["args"][:url], served("demo").url, *container["args"][url + 1 :])
        assert ended.returncode == 0 and re.search(r"errors +none", ended.stdout), ended.stdout + ended.stderr

    def test_several_models_are_apart(self, tmp_path):
        models = [{"name": "rerank"}, {"name": "embed", "settings": {"MODEL_ID": "BAAI/bge-m3"}, "gpu": True, "testRoute": "/embed"}]
        manifests = by_name(rendered(tmp_path, {"models": models, "settings": {"LOG_LEVEL": "warn"}}))
        settings = {model: manifests[f"ConfigMap/{RELEASE}-{model}"]["data"] for model in ("rerank", "embed")}
        assert [settings[model]["MODEL_ID"] for model in settings] == ["BAAI/bge-reranker-v2-m3", "BAAI/bge-m3"]
        assert {data["LOG_LEVEL"] for data in settings.values()} == {"warn"}
        selectors = [manifests[f"Service/{RELEASE}-{model}"]["spec"]["selector"] for model in settings]
        labels = [manifests[f"Deployment/{RELEASE}-{model}"]["spec"]["template"]["metadata"]["labels"] for model in settings]
        assert [[selector.items() <= pod.items() for pod in labels] for selector in selectors] == [[True, False], [False, True]]

    def test_a_models_file_takes_the_place_of_the_model(self, tmp_path):
        example = (CHART / "values.yaml").read_text().split("#   modelsFile: |\n")[1].split("modelsFile:")[0]
        content = re.sub(r"^# {5}", "", example, flags=re.MULTILINE)
        rest = {"settings": {"REVISION": "v1"}, "weights": {"from": "image"}}
        changed, manifests = (
            by_name(rendered(tmp_path, {"modelsFile": text, **rest})) for text in (content + "# changed\n", content)
        )
        assert manifests[f"ConfigMap/{RELEASE}-models-file"]["data"] == {"models.toml": content}
        settings = self.settings(manifests)
        assert "MODEL_ID" not in settings and "REVISION" not in settings
        pod = self.pod(manifests)
        (mount,) = [mount for mount in pod["containers"][0]["volumeMounts"] if mount["name"] == "models-file"]
        assert settings["MODELS_FILE"] == f"{mount['mountPath']}/models.toml"
        (volume,) = [volume for volume in pod["volumes"] if volume["name"] == "models-file"]
        assert volume["configMap"] == {"name": f"{RELEASE}-models-file"}
        deployments = [manifests["Deployment/text-embeddings-router"] for manifests in (changed, manifests)]
        assert deployments[0] != deployments[1], "a change starts no rollout"
        # The server reads the file: it fails later, because the models of the Hub are not here.
        (tmp_path / "models.toml").write_text(content)
        ended = run("--models-file", str(tmp_path / "models.toml"), "--port", "0", "--prometheus-port", "0")
        assert ended.returncode == 1 and "model `embedder`: " in ended.stderr, ended.stderr

    @pytest.mark.parametrize(
        "wrong",
        [{"setting": {}}, {"modelsFile": []}, {"settings": {"PORT": 8080}}, {"settings": {"port": "1"}}, {"weights": {"from": "nowhere"}}, {"models": [{}]}, {"autoscaling": {"busyShare": 70}}],
    )
    def test_wrong_values_are_refused(self, tmp_path, wrong):
        (tmp_path / "values.yaml").write_text(json.dumps(wrong))
        command = [programs.require("helm"), "template", RELEASE, str(CHART), "--values", str(tmp_path / "values.yaml")]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert ended.returncode != 0 and "values don't meet the specifications of the schema" in ended.stderr, ended.stderr


@pytest.fixture(scope="module", params=["compose.yaml", "models.yaml"])
def services(request) -> dict[str, dict]:
    return yaml.safe_load((COMPOSE / request.param).read_text())["services"]


class TestCompose:
    def test_each_variable_is_a_flag_of_the_server(self, services, variables):
        for service in own(services):
            assert set(service.get("environment", ())) <= variables

    def test_the_server_has_the_time_to_end(self, services):
        for service in own(services):
            drain = int(service.get("environment", {}).get("DRAIN_TIMEOUT", 25))
            assert drain < int(service["stop_grace_period"].removesuffix("s"))

    def test_mounted_files_exist(self, services):
        for name, service in services.items():
            sources = [volume.split(":")[0] for volume in service["volumes"]]
            assert all((COMPOSE / source).exists() for source in sources if source.startswith("./")), name

    def test_the_health_check_of_teis_compose_file_works(self, served, tmp_path):
        """The image has the binary under the name `curl` (test_images.py)."""
        (block,) = [block.text for block in blocks(COMPOSE / "README.md") if block.language == "yaml"]
        ((_, service),) = yaml.safe_load(block)["services"].items()
        kind, program, *arguments = service["healthcheck"]["test"]
        assert (kind, program) == ("CMD", "curl")
        (tmp_path / "curl").symlink_to(BINARY)
        ready = str(served("demo").port)
        for port, code in [(ready, 0), ("1", 1)]:
            words = [argument.replace("localhost:80/", f"localhost:{port}/") for argument in arguments]
            assert words != arguments
            ended = subprocess.run([tmp_path / "curl", *words], capture_output=True, text=True, timeout=30)
            assert ended.returncode == code and (ended.stderr == "") == (code == 0), ended
        other = subprocess.run([tmp_path / "curl", "http://example.com/"], capture_output=True, text=True, timeout=30)
        assert other.returncode == 1 and other.stderr.startswith("Error: `curl` is here for health checks"), other


def own(services: dict[str, dict]) -> list[dict]:
    """The services with this project's image."""
    return [service for service in services.values() if "text-embeddings-router" in service["image"]]


class TestRules:
    def test_they_fire_when_they_should(self):
        promtool = programs.require("promtool")
        run_tool(promtool, "check", "rules", str(RULES))
        run_tool(promtool, "check", "config", str(COMPOSE / "prometheus/prometheus.yaml"))
        run_tool(promtool, "test", "rules", str(COMPOSE / "prometheus/rules_test.yaml"))

    def test_the_operator_gets_the_same(self, tmp_path):
        rules = yaml.safe_load(RULES.read_text())
        assert by_name(rendered(tmp_path, {"monitoring": True}))[f"PrometheusRule/{RELEASE}"]["spec"] == rules
        names = {rule["alert"] for group in rules["groups"] for rule in group["rules"]}
        tested = yaml.safe_load((COMPOSE / "prometheus/rules_test.yaml").read_text())["tests"]
        assert {case["alertname"] for test in tested for case in test["alert_rule_test"]} == names


class Prometheus:
    """Debian's Prometheus with the configuration of deploy/compose; only its targets and intervals differ."""

    def __init__(self, folder: Path, servers: list[Server]):
        self._binary = programs.require("prometheus")
        config = yaml.safe_load((COMPOSE / "prometheus/prometheus.yaml").read_text())
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        (job,) = config["scrape_configs"]
        job.pop("dns_sd_configs")
        job["static_configs"] = [{"targets": [f"127.0.0.1:{server.port}" for server in servers]}]
        shutil.copy(RULES, folder)
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
        self._folder = folder

    def __enter__(self) -> "Prometheus":
        log = self._folder / "log"
        with log.open("wb") as file:
            flags = [f"--config.file={self._folder}/prometheus.yaml", f"--storage.tsdb.path={self._folder}/data"]
            self._process = subprocess.Popen(
                [self._binary, *flags, "--web.listen-address=127.0.0.1:0"], stdout=file, stderr=file
            )
        found = wait_until(lambda: re.search(r"Listening on.*address=\S*?:(\d+)", log.read_text()), 60, "Prometheus does not listen")
        self.url = f"http://127.0.0.1:{found[1]}"
        wait_until(lambda: requests.get(f"{self.url}/-/ready", timeout=10).ok, 60, f"Prometheus is not ready:\n{log.read_text()}")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(60)

    def query(self, expression: str) -> list[float]:
        """The current values of an expression, without NaN and infinities."""
        answer = requests.get(f"{self.url}/api/v1/query", params={"query": expression}, timeout=60).json()
        assert answer["status"] == "success", f"{expression}: {answer}"
        values = [float(series["value"][1]) for series in answer["data"]["result"]]
        return [value for value in values if math.isfinite(value)]


def ask_everything(reranker: Server, embedder: Server, stop: Event) -> None:
    """Sends requests that change every metric, until `stop` is set."""
    number = 0
    while not stop.is_set():
        number += 1
        texts = [f"{number} Mars is red.", "Mars is red. " * 400, "Bread is baked."]
        for _ in range(2):
            reranker.rerank(f"red planet {number}", texts)
        reranker.post("/predict", {"inputs": ["red planet", f"{number}"]})
        reranker.post("/embed", {"inputs": "a"})
        reranker.post("/tokenize", {"inputs": ["a"]})
        reranker.post("/rerank", {"query": "q", "texts": []})
        embedder.post("/embed", {"inputs": f"{number}"})
        embedder.post("/embed", {"inputs": ["a", ""]})
        time.sleep(0.02)


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory) -> Iterator[Prometheus]:
    stop = Event()
    with Server("demo", "--max-input-length", "128") as reranker, Server("embedding-last") as embedder:
        with Prometheus(tmp_path_factory.mktemp("prometheus"), [reranker, embedder]) as prometheus:
            asking = Thread(target=ask_everything, args=(reranker, embedder, stop))
            asking.start()
            try:
                # `rate` needs several scrapes.
                wait_until(lambda: prometheus.query("min(count_over_time(te_request_count[1m])) > 5"), 60, "nothing is scraped")
                yield prometheus
            finally:
                stop.set()
                asking.join()


class TestMonitoring:
    @pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
    def test_every_panel_shows_something(self, prometheus, panel):
        assert panel["description"] and panel["fieldConfig"]["defaults"]["unit"]
        for target in panel["targets"]:
            expression = target["expr"].replace("$__rate_interval", "1m").replace("$job", ".*").replace("$instance", ".*").replace("$model", ".*")
            assert "$" not in expression
            values = prometheus.query(expression)
            assert values, f"no value of {expression}"
            if panel["fieldConfig"]["defaults"]["unit"] == "percentunit":
                assert all(0 <= value <= 1.05 for value in values), f"{expression}: {values}"

    def test_the_panels_choices_are_answered(self, prometheus):
        for variable in DASHBOARD["templating"]["list"]:
            if variable["type"] == "query":
                metric = re.match(r"label_values\((\w+)", variable["definition"])[1]
                assert len(prometheus.query(metric)) == 2

    def test_every_rule_uses_metrics_that_exist(self, prometheus):
        rules = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
        adapter = yaml.safe_load((CHART / "adapter-rules.yaml").read_text())["rules"]
        asked = " ".join([rule["expr"] for rule in rules] + [rule["seriesQuery"] for rule in adapter])
        for name in sorted(set(re.findall(r"\bte_\w+", asked))):
            assert prometheus.query(f"count({name})"), name
        state = requests.get(f"{prometheus.url}/api/v1/rules", timeout=60).json()["data"]["groups"]
        assert {rule["health"] for group in state for rule in group["rules"]} == {"ok"}, state

    @pytest.mark.parametrize("family", TEIS)
    def test_a_dashboard_made_for_tei_finds_its_series(self, prometheus, family):
        forms = {
            "counter": "sum(rate({}[1m]))",
            "gauge": "max({})",
            "histogram": "histogram_quantile(0.95, sum by (le) (rate({}_bucket[1m])))",
        }
        expression = forms[TEIS[family]["type"]].format(family)
        assert prometheus.query(expression), expression
