"""A private Kubernetes for tests: an API server alone, or a cluster with nodes on which pods run.

`make kubernetes` builds the programs. To try something by hand, keep a cluster running until Ctrl-C (as root):

    .venv/bin/python -m tests.support.kubernetes_cluster [--nodes 2] [--network-policies] [--dns] [--alone]

It prints the command of a shell in which `kubectl` talks to it, and where its logs are.

The API server alone listens on loopback. A cluster has a network of its own, in which the control plane, every node and every
pod has an address; what connects to them runs within `network()`, as with the other engines of the tests.
"""

import argparse
import contextlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tools.kubernetes import cache_folder, missing_programs

from tests.support import kubernetes_dns
from tests.support.cgroup_removal import remove_cgroups
from tests.support.engine_image import image_archive
from tests.support.free_ports import free_ports
from tests.support.image_files import image_file
from tests.support.kubernetes_component import Component
from tests.support.kubernetes_control_plane import ControlPlane, Place
from tests.support.kubernetes_node import CNI, KubernetesNode
from tests.support.kubernetes_volumes import storage_classes
from tests.support.network_namespace import network_of
from tests.support.requirements import must_have
from tests.support.waiting import wait_until

PREFIX = "torpor-test-kubernetes-"
ROOT = Path(__file__).parents[2]
ADDRESS = "10.89.0.1"
"""Of the control plane, in the network of the cluster."""
IMAGE = "torpor-test:1"
"""The image of the Docker tests, on every node."""
API_SERVER = ("etcd", "kube-apiserver", "kubectl")
CLUSTER = ("kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy")
POLICIES = ("kube-network-policies",)
NEEDED = ("containerd", "ctr", "runc", "busybox", "iptables", "ip", "nsenter")
PACKAGES = "containerd, runc, busybox-static, iptables, iproute2 and containernetworking-plugins"
# Every component of the control plane joins this network.
IN_ITS_NETWORK = f"""
set -e
ip link set lo up
ip link add nodes type bridge
ip address add {ADDRESS}/24 dev nodes
ip link set nodes up
echo 1 > /proc/sys/net/ipv4/ip_forward
touch ready
exec sleep infinity
"""
NETWORK_POLICY_READER = [
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "network-policies"},
        "rules": [
            {"apiGroups": [""], "resources": ["pods", "namespaces"], "verbs": ["list", "watch"]},
            {"apiGroups": ["networking.k8s.io"], "resources": ["networkpolicies"], "verbs": ["list", "watch"]},
        ],
    },
    {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "network-policies"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "network-policies"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "network-policies"}],
    },
]


@dataclass
class KubernetesCluster:
    control: ControlPlane
    holder: Component | None
    """Its network is the cluster's; None: the API server is alone, on loopback."""
    nodes: list[KubernetesNode] = field(default_factory=list)

    @property
    def kubeconfig(self) -> Path:
        """Of an administrator, for processes within `network()`."""
        return self.control.kubeconfig

    @property
    def volumes(self) -> Path:
        """The folder of the files of all PersistentVolumes."""
        return self.control.folder / "volumes"

    def network(self) -> AbstractContextManager[None]:
        """Connect to the API server and to pods within this context."""
        if self.holder is None:
            return contextlib.nullcontext()
        assert self.holder.process is not None
        return network_of(self.holder.process.pid)

    def start(self, *, nodes: int, network_policies: bool, dns: bool) -> None:
        self.control.start()
        self.volumes.mkdir()
        self.control.apply(*storage_classes(), *(NETWORK_POLICY_READER if network_policies else ()))
        program = ("env", f"PYTHONPATH={ROOT}", sys.executable, "-m")
        words = ("tests.support.kubernetes_volumes", str(self.kubeconfig), str(self.volumes))
        self.control.add("provisioner", {}, program=(*program, *words))
        if dns:
            self.control.apply(*kubernetes_dns.service_objects(ADDRESS))
            words = ("tests.support.kubernetes_dns", str(self.kubeconfig), ADDRESS)
            self.control.add("dns", {}, program=(*program, *words))
        image = image_file(IMAGE, image_archive())
        for number in range(1, nodes + 1):
            node = KubernetesNode(self.control, number)
            self.nodes.append(node)
            node.start(network_policies=network_policies)
            node.import_image(image)
        self.wait_for_service_account("default")

    def wait_for_service_account(self, namespace: str) -> None:
        """Until a controller has created the default one of a namespace; no pod can be created without it."""
        wait_until(lambda: self.control.get("serviceaccounts", "--namespace", namespace)["items"], every_s=0.1)

    def must_run(self) -> None:
        """No component has ended by itself; a test may have stopped some."""
        for components in (self.control.components, *(node.components for node in self.nodes)):
            for component in components.values():
                if component.process is not None:
                    component.must_run()

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()
        self.control.stop()


def programs(*names: str) -> Path:
    """The folder of these programs, such as `helm`; the test is skipped if one is not there."""
    folder = cache_folder(os.environ)
    missing = [name for name in missing_programs(folder) if name in names]
    if missing:  # also where everything else is required: it takes an hour to build them
        pytest.skip(f"this machine lacks: {', '.join(missing)} in {folder} (`make kubernetes` builds them)")
    return folder


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    # Not pytest's directory: the path of a socket has at most 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    folder.chmod(0o711)  # pods of other users pass through it to their volumes
    try:
        yield folder
    finally:
        remove_cgroups(folder.name)
        shutil.rmtree(folder)


@contextlib.contextmanager
def api_server() -> Iterator[ControlPlane]:
    """etcd and an API server on loopback, which are removed at the end. No pod ever runs."""
    found = programs(*API_SERVER)
    with _folder() as folder:
        api, etcd, peers = free_ports("127.0.0.1", 3)
        control = ControlPlane(found, folder, Place("127.0.0.1", api, etcd, peers), alone=True)
        try:
            control.start()
            yield control
        finally:
            control.stop()


@contextlib.contextmanager
def cluster(*, nodes: int = 1, network_policies: bool = False, dns: bool = False) -> Iterator[KubernetesCluster]:
    """A cluster whose nodes are ready, which is removed at the end.

    With `network_policies` it enforces them, and with `dns` pods find services by name.
    """
    must_have(os.getuid() == 0 and all(map(shutil.which, NEEDED)) and CNI.exists(), f"root, and the packages {PACKAGES}")
    found = programs(*API_SERVER, *CLUSTER, *(POLICIES if network_policies else ()))
    with _folder() as folder:
        holder = Component("network", ("unshare", "--net", "sh", "-c", IN_ITS_NETWORK), folder)
        holder.start()
        try:
            wait_until((folder / "ready").exists, otherwise=holder.last_lines)
            assert holder.process is not None
            enter = ("nsenter", f"--net=/proc/{holder.process.pid}/ns/net", "--")
            control = ControlPlane(found, folder, Place(ADDRESS, 6443, 2379, 2380, enter), alone=False)
            made = KubernetesCluster(control, holder)
            try:
                made.start(nodes=nodes, network_policies=network_policies, dns=dns)
                yield made
                made.must_run()
            finally:
                made.stop()
        finally:
            holder.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description="Keep a Kubernetes for experiments running, until Ctrl-C.")
    parser.add_argument("--alone", action="store_true", help="only the API server, on loopback; root is not needed")
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--network-policies", action="store_true", help="enforce NetworkPolicies")
    parser.add_argument("--dns", action="store_true", help="pods find services by name")
    options = parser.parse_args()
    # A signal while it starts stops it, too. A shell starts background jobs with SIGINT ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt), contextlib.ExitStack() as stack:
        if options.alone:
            control = stack.enter_context(api_server())
        else:
            made = stack.enter_context(cluster(nodes=options.nodes, network_policies=options.network_policies, dns=options.dns))
            control = made.control
        shell = ("env", f"KUBECONFIG={control.kubeconfig}", f"PATH={control.programs}:$PATH", "bash")
        print(f"Kubernetes is ready at {control.url}; Ctrl-C removes it.")
        print(f"  a shell with kubectl:  {' '.join((*control.place.enter, *shell))}")
        print(f"  logs:                  {control.folder}/*.log and {control.folder}/node-*/*.log", flush=True)
        signal.pause()


if __name__ == "__main__":
    main()
