"""The control plane of a Kubernetes cluster for tests: etcd, the API server, and what a cluster with nodes also needs."""

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.kubernetes_certificates import ADMINISTRATORS, Certificates
from tests.support.kubernetes_component import Component, flags
from tests.support.waiting import wait_until

START_S = 120.0
"""On a busy machine."""
SERVICES = "10.96.0.0/16"
API_SERVICE = "10.96.0.1"


@dataclass(frozen=True)
class Place:
    """Where the control plane listens."""

    address: str
    api: int
    etcd: int
    etcd_peers: int
    enter: tuple[str, ...] = ()
    """The beginning of every command: it enters the network of the control plane."""


@dataclass
class ControlPlane:
    programs: Path
    folder: Path
    place: Place
    alone: bool
    """There is neither a controller manager nor a node: no controller creates service accounts."""
    components: dict[str, Component] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.certificates = Certificates(self.folder / "certificates")
        self.kubeconfig = self.certificates.kubeconfig(self.url, "tests", ADMINISTRATORS)
        """Of an administrator."""

    @property
    def url(self) -> str:
        return f"https://{self.place.address}:{self.place.api}"

    # ── start and stop ────────────────────────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        self.add("etcd", self._etcd_options())
        self.add("kube-apiserver", self._api_options())
        self.wait()
        if not self.alone:
            self._start_controllers({})

    def _start_controllers(self, more: Mapping[str, object]) -> None:
        self.add("kube-controller-manager", {**self._controller_options(), **more})
        kubeconfig = self.certificates.kubeconfig(self.url, "system:kube-scheduler")
        self.add("kube-scheduler", {"kubeconfig": kubeconfig, "leader-elect": "false", "secure-port": 0, **more})

    def restart_controllers(self, requests_per_s: int) -> None:
        """The controller manager and the scheduler call the API server more often than by default."""
        for name in ("kube-scheduler", "kube-controller-manager"):
            self.components.pop(name).stop()
        self._start_controllers({"kube-api-qps": requests_per_s, "kube-api-burst": requests_per_s})

    def add(self, name: str, options: Mapping[str, object], *, program: tuple[str, ...] = ()) -> Component:
        """Start a component, which is a program of Kubernetes or another one."""
        command = (*self.place.enter, *(program or (str(self.programs / name),)), *flags(options))
        component = Component(name, command, self.folder)
        self.components[name] = component
        component.start()
        return component

    def wait(self) -> None:
        """Until the API server is ready."""
        wait_until(self._is_ready, within_s=START_S, every_s=0.1, otherwise=self.components["kube-apiserver"].last_lines)

    def _is_ready(self) -> bool:
        for component in self.components.values():
            component.must_run()
        return self._kubectl("get", "--raw", "/readyz").returncode == 0

    def stop(self) -> None:
        for component in reversed(self.components.values()):
            component.stop()

    # ── use ───────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _kubectl(self, *words: str, stdin: str = "", timeout_s: float = 60) -> "subprocess.CompletedProcess[str]":
        command = [*self.place.enter, str(self.programs / "kubectl"), "--kubeconfig", str(self.kubeconfig), *words]
        environment = {**os.environ, "HOME": str(self.folder)}  # its cache of the API is there
        return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout_s, env=environment)

    def kubectl(self, *words: str, stdin: str = "", timeout_s: float = 60) -> str:
        """The output of a command of an administrator, which must succeed."""
        done = self._kubectl(*words, stdin=stdin, timeout_s=timeout_s)
        assert done.returncode == 0, f"kubectl {' '.join(words)}: {done.stderr}"
        return done.stdout

    def refusal(self, *words: str, stdin: str = "") -> str:
        """The error of a command of an administrator, which must fail."""
        done = self._kubectl(*words, stdin=stdin)
        assert done.returncode != 0, f"kubectl {' '.join(words)} succeeded: {done.stdout}"
        return done.stderr

    def apply(self, *objects: Mapping[str, Any]) -> None:
        self.kubectl("apply", "--filename", "-", stdin=as_list(*objects))

    def get(self, *words: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.kubectl("get", *words, "--output", "json"))
        return found

    # ── options ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _etcd_options(self) -> dict[str, object]:
        client = f"http://{self.place.address}:{self.place.etcd}"
        peers = f"http://{self.place.address}:{self.place.etcd_peers}"
        return {
            "data-dir": self.folder / "etcd",
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peers,
            "initial-advertise-peer-urls": peers,
            "initial-cluster": f"default={peers}",
            "unsafe-no-fsync": "true",  # tests survive no power cut
        }

    def _api_options(self) -> dict[str, object]:
        names = (
            "localhost",
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
            "kubernetes.default.svc.cluster.local",
        )
        addresses = list(dict.fromkeys((self.place.address, "127.0.0.1", API_SERVICE)))
        serving = self.certificates.server("kube-apiserver", addresses=addresses, names=names)
        kubelet = self.certificates.client("kube-apiserver-kubelet-client", ADMINISTRATORS)
        self._tokens = self.certificates.signing_key()
        options: dict[str, object] = {
            "etcd-servers": f"http://{self.place.address}:{self.place.etcd}",
            "bind-address": self.place.address,
            "advertise-address": self.place.address,
            "secure-port": self.place.api,
            "cert-dir": self.folder / "certificates",
            "tls-cert-file": serving.certificate,
            "tls-private-key-file": serving.key,
            "client-ca-file": self.certificates.authority.certificate,
            "kubelet-client-certificate": kubelet.certificate,
            "kubelet-client-key": kubelet.key,
            "kubelet-preferred-address-types": "InternalIP",
            "service-account-issuer": "https://kubernetes.default.svc.cluster.local",
            "service-account-signing-key-file": self._tokens,
            "service-account-key-file": self._tokens,
            "service-cluster-ip-range": SERVICES,
            "authorization-mode": "Node,RBAC",
            "enable-admission-plugins": "NodeRestriction",
            "allow-privileged": "true",
        }
        if self.alone:
            # These two need a controller. A loopback address cannot be the endpoint of the service `kubernetes`.
            disabled = "ServiceAccount,StorageObjectInUseProtection"
            options |= {"disable-admission-plugins": disabled, "endpoint-reconciler-type": "none"}
        return options

    def _controller_options(self) -> dict[str, object]:
        authority = self.certificates.authority
        return {
            "kubeconfig": self.certificates.kubeconfig(self.url, "system:kube-controller-manager"),
            "use-service-account-credentials": "true",
            "service-account-private-key-file": self._tokens,
            "root-ca-file": authority.certificate,
            "cluster-signing-cert-file": authority.certificate,
            "cluster-signing-key-file": authority.key,
            "leader-elect": "false",
            "secure-port": 0,
        }


def as_list(*objects: Mapping[str, Any]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
