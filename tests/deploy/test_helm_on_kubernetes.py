"""The chart of deploy/helm on a real cluster, installed as docs/how-to/run-on-kubernetes.md says."""

import base64
import contextlib
import http.client
import json
import os
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from tools.tour import tour_of

from tests.deploy.conftest import BEGIN, ROOT, HowTo
from tests.deploy.test_helm_chart import HOW_TO, VALUES, documented
from tests.support.cluster_services import SERVICES
from tests.support.docker_engine import DockerEngine
from tests.support.helm import CHART, NAMESPACE, RELEASE, Rendered, run_helm
from tests.support.kubernetes_cluster import ADDRESS, IMAGE, KubernetesCluster, api_server, cluster
from tests.support.kubernetes_control_plane import ControlPlane, as_list
from tests.support.network_namespace import network_of
from tests.support.product import TORPOR
from tests.support.s3_server import s3_server
from tests.support.waiting import wait_until
from torpor.runtimes.object_labels import container_name

IMAGES = ("registry.example.com/torpor:0.1.0", "registry.example.com/torpor-kit:0.1.0")
HOST, DOMAIN = documented()["host"], documented()["workspaceDomain"]
FILL = "head -c 300000 /dev/urandom > ~/blob; cat ~/blob"
HELM_S = 400.0
PATIENCE_S = 120.0
STRANGER = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "stranger"}}
CONNECT = """
import socket, sys
for word in sys.argv[1:]:
    role, address = word.split("=")
    with socket.socket() as probe:
        probe.settimeout(3)
        if probe.connect_ex((address, 8080)) == 0:
            print(role)
"""
# Of the Prometheus operator; only its name matters here.
SERVICE_MONITORS = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "servicemonitors.monitoring.coreos.com"},
    "spec": {
        "group": "monitoring.coreos.com",
        "names": {"kind": "ServiceMonitor", "plural": "servicemonitors", "singular": "servicemonitor"},
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}


@dataclass
class Installation:
    """The chart in a cluster with everything that the how-to requires."""

    cluster: KubernetesCluster
    folder: Path
    variables: Mapping[str, str]
    """Of its PostgreSQL, its Valkey and its object store."""
    key: str = field(default_factory=lambda: base64.b64encode(secrets.token_bytes(32)).decode())
    token: str = ""

    # ── commands of an administrator ──────────────────────────────────────────────────────────────────────────────────

    def kubectl(self, *words: str, **more: Any) -> str:
        return self.cluster.control.kubectl("--namespace", NAMESPACE, *words, **more)

    def get(self, *words: str) -> dict[str, Any]:
        return self.cluster.control.get("--namespace", NAMESPACE, *words)

    def names(self, kind: str, selector: str = "") -> set[str]:
        words = ("--selector", selector) if selector else ()
        return {one["metadata"]["name"] for one in self.get(kind, *words)["items"]}

    def helm(self, *words: str, values: Mapping[str, Any] | None = None) -> str:
        if values is not None:
            file = self.folder / "values.yaml"
            file.write_text(yaml.safe_dump(dict(values)))
            words = (*words, "--values", str(file))
        environment = {"KUBECONFIG": str(self.cluster.kubeconfig), "HOME": str(self.folder)}
        enter = self.cluster.control.place.enter
        done = run_helm(*words, "--namespace", NAMESPACE, enter=enter, environment=environment, timeout_s=HELM_S)
        assert done.returncode == 0, f"helm {' '.join(words)}: {done.stderr}\n{self.said()}"
        return done.stdout

    def said(self) -> str:
        """What the pods of Torpor say, for the message of a failure."""
        lines = [self.kubectl("get", "pods,jobs,pvc", "--output", "wide"), self.kubectl("get", "events")]
        for pod in self.names("pods", f"app.kubernetes.io/instance={RELEASE}"):
            with contextlib.suppress(AssertionError):
                lines.append(f"== {pod}\n{self.kubectl('logs', pod, '--all-containers', '--tail', '20')}")
        return "\n".join(lines)

    def members(self) -> dict[str, bool]:
        """Whether it leads, by controller; the node ID begins with the name of its pod. Empty if no controller answers."""
        for pod in self.get("pods", "--selector", "app.kubernetes.io/component=controller")["items"]:
            address = pod["status"].get("podIP")
            if address is None or "deletionTimestamp" in pod["metadata"]:
                continue
            # It may end, or not serve yet.
            with contextlib.suppress(OSError, http.client.HTTPException), self.cluster.network():
                answer, said = ask(address, 9090, "/health/coordinator", host=f"{address}:9090")
                if answer.status == 200:
                    return {one["node_id"].partition(":")[0]: one["is_leader"] for one in json.loads(said)["members"]}
        return {}

    # ── commands of a user ────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def address(self) -> str:
        return str(self.get("service", "torpor-proxy")["spec"]["clusterIP"])

    def ask(self, path: str, method: str = "GET", body: object = None, host: str = HOST, **headers: str) -> Any:
        """Through the Service of the proxies, as an Ingress controller."""
        shown = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        with network_of(self.cluster.nodes[0].pid):
            sent = {"X-Forwarded-Proto": "https", "Content-Type": "application/json", **shown, **headers}
            return ask(self.address, 80, path, method, json.dumps(body) if body is not None else None, host=host, **sent)

    def torpor(self, *words: str) -> bytes:
        """With names that lead to the proxies."""
        hosts = self.folder / "hosts"
        hosts.write_text(f"{self.address} {HOST}\n")
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TORPOR_")}
        environment |= {"TORPOR_URL": f"http://{HOST}", "TORPOR_TOKEN": self.token, "HOME": str(self.folder)}
        enter = ("nsenter", f"--net=/proc/{self.cluster.nodes[0].pid}/ns/net", "--", "unshare", "--mount", "sh", "-c")
        script = f'mount --bind {hosts} /etc/hosts && exec "$0" "$@"'
        command = [*enter, script, TORPOR, *words]
        done = subprocess.run(command, env=environment, capture_output=True, timeout=PATIENCE_S + 60, check=False)
        assert done.returncode == 0, f"torpor {' '.join(words)}: {done.stderr.decode()}\n{self.said()}"
        return done.stdout

    def sign_in(self, username: str, password: str) -> None:
        answer, said = self.ask("/api/v1/login", "POST", {"username": username, "password": password})
        assert answer.status == 204, said
        cookie = str(answer.getheader("Set-Cookie")).partition(";")[0]
        wanted = {"label": "tests", "scopes": ["read", "use", "manage"]}
        answer, said = self.ask("/api/v1/tokens", "POST", wanted, Cookie=cookie, Origin=f"https://{HOST}")
        assert answer.status == 201, said
        self.token = json.loads(said)["token"]

    def show(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.torpor("show", name, "--json"))
        return found


def ask(address: str, port: int, path: str, method: str = "GET", body: str | None = None, **headers: str) -> Any:
    connection = http.client.HTTPConnection(address, port, timeout=90)
    try:
        connection.request(method, path, body, {"Host" if name == "host" else name: value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer, answer.read()
    finally:
        connection.close()


@pytest.fixture(scope="session")
def images(engine: DockerEngine, how_to: HowTo) -> list[bytes]:
    """Built as the how-to says, as files."""
    how_to.follow(tour_of(BEGIN + HOW_TO.read_text().split(BEGIN)[1]), how_to.clone)
    saved = [["docker", "--host", engine.url, "save", name] for name in IMAGES]
    return [subprocess.run(command, stdout=subprocess.PIPE, timeout=120, check=True).stdout for command in saved]


@pytest.fixture
def kubernetes(images: list[bytes], tmp_path: Path) -> Iterator[Installation]:
    with cluster(dns=True, network_policies=True) as made, made.network(), s3_server(ADDRESS) as store:
        module = ("env", f"PYTHONPATH={ROOT}", sys.executable, "-m")
        folder = made.control.folder / "services"
        folder.mkdir()
        services = made.control.add("services", {}, program=(*module, "tests.support.cluster_services", ADDRESS, str(folder)))
        wait_until((folder / SERVICES).exists, within_s=PATIENCE_S, otherwise=services.last_lines)
        for image in images:
            made.nodes[0].import_image(image)
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        made.control.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}})
        made.wait_for_service_account(NAMESPACE)
        variables = {**json.loads((folder / SERVICES).read_text()), **store.environment}
        yield Installation(made, tmp_path, variables)


def create_secrets(here: Installation) -> None:
    """As the how-to says."""
    given = {name: value for name, value in here.variables.items() if name not in ("AWS_REGION", "AWS_ENDPOINT_URL")}
    literals = [f"--from-literal={name}={value}" for name, value in given.items()]
    here.kubectl("create", "secret", "generic", "torpor", *literals)
    here.kubectl("create", "secret", "generic", "torpor-key", f"--from-literal=torpor.key={here.key}")


def values_of(here: Installation) -> dict[str, Any]:
    """Those of the how-to, with the services of the tests, and one process of each role."""
    values = documented()
    values["settings"] |= {
        "archive_url": "s3://homes/of-the-tests",
        "kubernetes_storage_class": "local",
        "kubernetes_volume_size": "64Mi",
        "workspace_image": IMAGE,
        "workspace_stop_grace": 2,
    }
    values["environment"] = {name: here.variables[name] for name in ("AWS_REGION", "AWS_ENDPOINT_URL")}
    values["firstAdministrator"] = "eve"
    return values | {role: {"replicas": 1} for role in ("api", "proxy", "controller")}


def ready_replicas(here: Installation) -> dict[str, int]:
    return {one["metadata"]["name"]: one["status"].get("readyReplicas", 0) for one in here.get("deployments")["items"]}


def reached_by_a_stranger(here: Installation) -> set[str]:
    """The roles whose pods another pod of the namespace can connect to, at the port for requests."""
    roles = {one["metadata"]["labels"]["app.kubernetes.io/component"]: one["status"]["podIP"] for one in serving_pods(here)}
    container = {
        "name": "stranger",
        "image": IMAGES[0],
        "imagePullPolicy": "Never",
        "command": ["python3", "-c", CONNECT, *(f"{role}={address}" for role, address in roles.items())],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    security = {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}}
    spec = {"restartPolicy": "Never", "securityContext": security, "containers": [container]}
    here.kubectl("apply", "--filename", "-", stdin=as_list({**STRANGER, "spec": spec}))
    here.kubectl(
        "wait", "pod/stranger", "--for=jsonpath={.status.phase}=Succeeded", f"--timeout={PATIENCE_S:g}s", timeout_s=130
    )
    return set(here.kubectl("logs", "stranger").split())


def serving_pods(here: Installation) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = here.get("pods", "--selector", "app.kubernetes.io/part-of=torpor")["items"]
    return found


def leader_of_two(here: Installation) -> str | None:
    """None until the processes of the former release have ended, and one of the others leads."""
    members = here.members()
    is_complete = len(members) == 2 and members.keys() == here.names("pods", "app.kubernetes.io/component=controller")
    return next((name for name, leads in members.items() if leads), None) if is_complete else None


def wakes_with_its_home(here: Installation, blob: bytes) -> None:
    """The workspace is archived, and wakes with a request to its address."""
    here.torpor("archive", "demo", "--wait")
    assert here.show("demo")["phase"] == "ARCHIVED"
    answer, page = here.ask("/", host=f"demo.{DOMAIN}")
    assert (answer.status, b"<title>demo</title>" in page) == (200, True), page
    assert here.torpor("exec", "demo", "--", "cat", "blob") == blob


def test_the_chart_installs_a_torpor_that_survives(kubernetes: Installation) -> None:
    here, began = kubernetes, time.monotonic()
    create_secrets(here)
    values = values_of(here)
    notes = here.helm("install", RELEASE, str(CHART), "--wait", "--timeout", "5m", values=values)
    print(f"\n  installed after {time.monotonic() - began:.0f} s")
    assert f"https://{HOST}" in notes
    assert ready_replicas(here) == {"torpor-api": 1, "torpor-proxy": 1, "torpor-controller": 1}
    tested = here.helm("test", RELEASE, "--logs", "--timeout", "3m")
    assert "http://torpor-proxy:80 200" in tested
    assert re.search(r"kubernetes .*namespace product", tested), tested

    (read,) = re.findall(r"kubectl (logs --namespace product job/\S+)", notes)
    (password,) = re.findall(r"administrator eve with the one-time password (\S+)", here.kubectl(*read.split()))
    here.sign_in("eve", password)
    answer, said = here.ask("/metrics")
    assert answer.status == 404, said
    assert reached_by_a_stranger(here) == {"proxy"}
    here.torpor("create", "demo", "--wait")
    blob = here.torpor("exec", "demo", "--", "sh", "-c", FILL)
    assert len(blob) == 300000
    here.torpor("stop", "demo", "--wait")
    here.torpor("start", "demo", "--wait")
    assert here.torpor("exec", "demo", "--", "cat", "blob") == blob
    wakes_with_its_home(here, blob)

    # With the same secrets, now by values: the migration gets its own copy of them.
    del values["secrets"]["existingSecret"], values["installationKey"]["existingSecret"]
    values["secrets"]["values"] = {name: value for name, value in here.variables.items() if name not in values["environment"]}
    values["installationKey"]["value"] = here.key
    values |= {role: {"replicas": 2} for role in ("api", "proxy", "controller")}
    here.helm("upgrade", RELEASE, str(CHART), "--wait", "--timeout", "5m", values=values)
    assert ready_replicas(here) == {"torpor-api": 2, "torpor-proxy": 2, "torpor-controller": 2}
    assert "torpor-migration" not in here.names("secrets")
    assert here.torpor("exec", "demo", "--", "cat", "blob") == blob
    leader = wait_until(lambda: leader_of_two(here), within_s=PATIENCE_S, otherwise=lambda: str(here.members()))
    here.kubectl("delete", "pod", leader, "--wait=false")
    wakes_with_its_home(here, blob)
    wait_until(lambda: ready_replicas(here)["torpor-controller"] == 2, within_s=PATIENCE_S, otherwise=here.said)

    homes, pod = here.names("pvc"), container_name(here.show("demo")["id"])
    assert len(homes) == 1
    here.helm("uninstall", RELEASE, "--wait", "--timeout", "3m")
    assert here.names("deployments") == set()
    assert (here.names("pvc"), here.names("pods", "app.kubernetes.io/managed-by=torpor")) == (homes, {pod})
    assert {"torpor-key", "torpor-installation-key"} <= here.names("secrets")
    here.helm("install", RELEASE, str(CHART), "--wait", "--timeout", "5m", values=values)
    assert here.torpor("exec", "demo", "--", "cat", "blob") == blob
    print(f"  all after {time.monotonic() - began:.0f} s")


def test_a_wrong_setting_stops_the_installation_before_anything_is_changed(kubernetes: Installation) -> None:
    here = kubernetes
    create_secrets(here)
    values = values_of(here)
    values["settings"]["standby_tll"] = 5
    with pytest.raises(AssertionError, match="TORPOR_STANDBY_TLL is not a setting; did you mean TORPOR_STANDBY_TTL"):
        here.helm("install", RELEASE, str(CHART), "--wait", "--timeout", "3m", values=values)
    assert here.names("deployments") == set()
    assert len(here.names("pods", "app.kubernetes.io/component=migration")) == 1, "a wrong setting is not tried again"


@pytest.fixture(scope="module")
def control() -> Iterator[ControlPlane]:
    """An API server with the namespaces of the values."""
    with api_server() as control:
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        names = [{"name": name, "labels": labels} for name in (NAMESPACE, "workspaces")]
        control.apply(SERVICE_MONITORS, *({"apiVersion": "v1", "kind": "Namespace", "metadata": name} for name in names))
        wait_until(lambda: "servicemonitors" in control.kubectl("api-resources", "--api-group", "monitoring.coreos.com"))
        yield control


@pytest.mark.kubernetes
@pytest.mark.api_server
@pytest.mark.parametrize("name", VALUES)
def test_an_api_server_accepts_all_objects(control: ControlPlane, name: str, tmp_path: Path) -> None:
    for one in Rendered(VALUES[name], tmp_path).objects:
        where = () if "namespace" in one["metadata"] else ("--namespace", NAMESPACE)
        strict = ("--dry-run=server", "--validate=strict", *where)
        control.kubectl("apply", *strict, "--filename", "-", stdin=as_list(one))
