"""A cluster for all tests of this folder, a namespace with Torpor's role, and a runtime of a new installation for each test."""

import contextlib
import io
import json
import os
import secrets
import tarfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import open_folder
from tests.support.engine_image import image_archive
from tests.support.image_files import image_file
from tests.support.kept_logs import LogsInMemory
from tests.support.kubernetes_cluster import ADDRESS, IMAGE, KubernetesCluster, api_server, cluster
from tests.support.kubernetes_control_plane import as_list
from tests.support.product import Product
from tests.support.s3_server import s3_server
from tests.support.waiting import wait_until
from torpor.kit import layout
from torpor.kit.kit_folder import ensure_kit
from torpor.runtimes.kubernetes.options import KubernetesOptions
from torpor.runtimes.kubernetes.runtime import KubernetesRuntime
from torpor.runtimes.object_labels import INSTALLATION

ROLE = Path(__file__).parents[3] / "deploy" / "kubernetes" / "role.yaml"
KIT_IMAGE = "torpor-kit:1"
NAMESPACE = "workspaces"
ACCOUNT = "torpor-controller"
INSTALLATION_KEY = b"key of the tests"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that need a cluster are in a target of their own (`make e2e-kubernetes`)."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent) and "installed" in getattr(item, "fixturenames", ()):
            item.add_marker("kubernetes")


def kit_image() -> bytes:
    """The kit, and programs that jobs of the tests start."""
    archive = io.BytesIO(image_archive())
    with open_folder.open_folder() as data, tarfile.open(fileobj=archive, mode="a") as tar:
        kit = ensure_kit(data, os.environ, lambda _done, _total: None)
        tar.add(kit.path, str(layout.MOUNT).lstrip("/"), filter=_owned_by_root)
    return image_file(KIT_IMAGE, archive.getvalue())


def _owned_by_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    return entry


@dataclass
class InstalledCluster:
    """A cluster with a namespace for workspaces, in which Torpor has its role and nothing else."""

    cluster: KubernetesCluster
    kubeconfig: Path

    def kubectl(self, *words: str, **more: Any) -> str:
        return self.cluster.control.kubectl("--namespace", NAMESPACE, *words, **more)

    def get(self, *words: str) -> dict[str, Any]:
        return self.cluster.control.get("--namespace", NAMESPACE, *words)

    def exists(self, kind: str, name: str) -> bool:
        return bool(self.kubectl("get", kind, name, "--ignore-not-found", "--output", "name").strip())

    def remove_all(self, selector: str) -> None:
        self.kubectl("delete", "pods,secrets,networkpolicies", "--selector", selector, "--wait", timeout_s=120)
        for claim in self.get("pvc", "--selector", selector)["items"]:
            self.remove_claim(claim["metadata"]["name"])

    def remove_claim(self, name: str) -> None:
        """By hand, also if Torpor wants to keep it."""
        self.kubectl("delete", "pvc", name, "--wait=false")
        finalizers = json.dumps({"metadata": {"finalizers": None}})
        self.kubectl("patch", "pvc", name, "--type", "merge", "--patch", finalizers)
        wait_until(lambda: not self.exists("pvc", name))

    def bind_role(self) -> None:
        self.kubectl("apply", "--filename", "-", stdin=ROLE.read_text())
        wait_until(lambda: all(self._may(rights())))

    @contextlib.contextmanager
    def without(self, lost: "Right") -> Iterator[None]:
        """Torpor lacks this right."""
        role = role_of_the_file()
        for rule in role["rules"]:
            if lost.resource in rule["resources"]:
                rule["verbs"].remove(lost.verb)
        role["rules"] = [rule for rule in role["rules"] if rule["verbs"]]
        self.kubectl("apply", "--filename", "-", stdin=json.dumps(role))
        try:
            wait_until(lambda: not any(self._may([lost])))
            yield
        finally:
            self.bind_role()

    def with_token(self, token: str) -> Path:
        """A kubeconfig with another token."""
        return kubeconfig_with_token(self.cluster, token)

    def revoke_role(self) -> None:
        self.kubectl("delete", "rolebinding", ACCOUNT)
        wait_until(lambda: not any(self._may(rights())))

    def _may(self, asked: "Sequence[Right]") -> list[bool]:
        """What the API server says about each right."""
        reviews = as_list(*(right.review() for right in asked))
        answers = self.kubectl("create", "--filename", "-", "--output", "jsonpath={.status.allowed} ", stdin=reviews)
        return [answer == "true" for answer in answers.split()]


@dataclass(frozen=True)
class Right:
    group: str
    resource: str
    verb: str

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}"

    def review(self) -> dict[str, Any]:
        resource, _, subresource = self.resource.partition("/")
        attributes = {"group": self.group, "resource": resource, "subresource": subresource, "verb": self.verb}
        return {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": f"system:serviceaccount:{NAMESPACE}:{ACCOUNT}",
                "resourceAttributes": {"namespace": NAMESPACE, **attributes},
            },
        }


def role_of_the_file() -> dict[str, Any]:
    role: dict[str, Any] = next(one for one in yaml.safe_load_all(ROLE.read_text()) if one["kind"] == "Role")
    return role


def rights() -> list[Right]:
    """All that Torpor's role has."""
    return [
        Right(group, resource, verb)
        for rule in role_of_the_file()["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    ]


def kubeconfig_with_token(made: KubernetesCluster, token: str) -> Path:
    found = yaml.safe_load(made.kubeconfig.read_text())
    found["users"] = [{"name": one["name"], "user": {"token": token}} for one in found["users"]]
    path = made.control.folder / f"kubeconfig-{secrets.token_hex(4)}"
    path.write_text(yaml.safe_dump(found))
    return path


@contextlib.contextmanager
def installed_cluster(*, nodes: int = 1, network_policies: bool = False) -> Iterator[InstalledCluster]:
    with cluster(nodes=nodes, network_policies=network_policies) as made:
        kit = kit_image()
        for node in made.nodes:
            node.import_image(kit)
        installed = install(made)
        made.wait_for_service_account(NAMESPACE)
        yield installed


@contextlib.contextmanager
def installed_api_server() -> Iterator[InstalledCluster]:
    """Without nodes: pods are kept as they were created, and none runs."""
    with api_server() as control:
        yield install(KubernetesCluster(control, None))


def install(made: KubernetesCluster) -> InstalledCluster:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    made.control.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}})
    made.control.kubectl("--namespace", NAMESPACE, "apply", "--filename", "-", stdin=ROLE.read_text())
    token = made.control.kubectl("--namespace", NAMESPACE, "create", "token", ACCOUNT, "--duration=24h").strip()
    installed = InstalledCluster(made, kubeconfig_with_token(made, token))
    installed.bind_role()
    return installed


@pytest.fixture(scope="session")
def installed() -> Iterator[InstalledCluster]:
    with installed_cluster() as made:
        yield made


@pytest.fixture
def installation() -> str:
    return f"test-{secrets.token_hex(6)}"


MakeRuntime = Callable[..., KubernetesRuntime]


@pytest.fixture
async def make_runtime(installed: InstalledCluster, installation: str) -> AsyncIterator[MakeRuntime]:
    """Each call is another controller of the same installation, with these options. Call `start` on it."""
    made: list[KubernetesRuntime] = []
    logs = LogsInMemory()

    def make(on_change: Callable[[str], None] = lambda _workspace_id: None, **changes: Any) -> KubernetesRuntime:
        options = KubernetesOptions(
            installation,
            IMAGE,
            KIT_IMAGE,
            grace_s=2.0,
            user=1000,
            volume_size="64Mi",
            access_mode="ReadWriteOnce",
            kubeconfig=installed.kubeconfig,
            namespace=NAMESPACE,
        )
        options = replace(options, **changes)
        made.append(KubernetesRuntime(options, installation_key=INSTALLATION_KEY, kept_logs=logs, on_change=on_change))
        return made[-1]

    with installed.cluster.network():
        yield make
        for runtime in made:
            await runtime.close()
    installed.remove_all(f"{INSTALLATION}={installation}")


@pytest.fixture
async def runtime(make_runtime: MakeRuntime) -> KubernetesRuntime:
    runtime = make_runtime()
    await runtime.start()
    return runtime


# ── the product ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def pod_file(tmp_path: Path) -> Path:
    """Torpor runs outside of the cluster, and its agents are reached from there."""
    path = tmp_path / "pods.yaml"
    path.write_text(yaml.safe_dump({"network": {"from": [{"ipBlock": {"cidr": f"{ADDRESS}/32"}}]}}))
    return path


def product_settings(installed: InstalledCluster, pod_file: Path) -> dict[str, str]:
    return {
        "runtime": "kubernetes",
        "kubernetes_config": str(installed.kubeconfig),
        "kubernetes_namespace": NAMESPACE,
        "kubernetes_kit_image": KIT_IMAGE,
        "kubernetes_volume_size": "64Mi",
        "kubernetes_pod_file": str(pod_file),
        "workspace_image": IMAGE,
        "workspace_stop_grace": "2",
        "archive_url": "s3://homes/of-the-tests",
    }


@pytest.fixture
def more_settings() -> dict[str, str]:
    """A module of tests may have others."""
    return {}


@pytest.fixture
def product(installed: InstalledCluster, tmp_path: Path, pod_file: Path, more_settings: dict[str, str]) -> Iterator[Product]:
    with installed.cluster.network(), s3_server(ADDRESS) as store:
        given = {**product_settings(installed, pod_file), **more_settings}
        settings = {f"TORPOR_{name.upper()}": value for name, value in given.items()}
        made = Product(tmp_path / "data", environment={**settings, **store.environment})
        with made.running():
            yield made
    installed.remove_all("app.kubernetes.io/managed-by=torpor")
