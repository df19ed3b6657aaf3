"""A node of a Kubernetes cluster for tests: containerd, kubelet and kube-proxy in namespaces of their own.

Its processes, mounts and network interfaces end with the first process of its process namespace. What it writes below /var/lib,
/var/log and /run is in its folder or in memory. It changes no setting of the kernel outside its network.
"""

import json
import os
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.cgroup_removal import CGROUPS
from tests.support.image_files import busybox_image_file
from tests.support.kubernetes_component import Component, flags
from tests.support.kubernetes_control_plane import ControlPlane
from tests.support.podman_engine import children_of
from tests.support.waiting import wait_until

START_S = 120.0
CNI = Path("/usr/lib/cni")
"""Of the package containernetworking-plugins."""
CONTAINERD = "/run/containerd/containerd.sock"
PAUSE_IMAGE = "torpor.test/pause:1"
PAUSE = ("/busybox", "sh", "-c", "trap 'exit 0' TERM INT; while :; do /busybox sleep 3600 & wait $!; done")
"""Holds the namespaces of a pod, and collects the processes that others leave behind."""
PODS = "10.244.0.0/16"
QUEUE = 100
"""Where kube-network-policies decides about packets."""
# The same as its own rules, except that these also work on a kernel that has xt_NFQUEUE and not nft_queue, and on one without
# NETFILTER_NETLINK_GLUE_CT, where the program cannot label the connections that it accepts: it decides about the first packets
# of a connection, and the answers pass. Without the program no packet of a pod passes.
TO_QUEUE = ("-j", "NFQUEUE", "--queue-num", str(QUEUE))
POLICY_RULES = (
    ("POSTROUTING", "-m", "owner", "--uid-owner", "0", "-j", "ACCEPT"),
    ("POSTROUTING", "-m", "conntrack", "--ctstate", "ESTABLISHED,RELATED", "-j", "ACCEPT"),
    ("POSTROUTING", "-s", PODS, *TO_QUEUE),
    ("POSTROUTING", "-d", PODS, *TO_QUEUE),
    ("INPUT", "!", "-i", "lo", "-s", PODS, "-m", "conntrack", "--ctstate", "NEW", *TO_QUEUE),
)
# The values that kubelet wants. It reads them here, and so it does not change those of this machine.
KERNEL = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1000000,
    "kernel/keys/root_maxbytes": 25000000,
}
# The first process of the node collects the processes that others leave behind.
IN_ITS_NAMESPACES = """
set -e
mount --make-rprivate /
mount --bind lib /var/lib
mount --bind log /var/log
mount -t tmpfs tmpfs /run
for name in $KERNEL_SETTINGS; do mount --bind "kernel/$name" "/proc/sys/$name"; done
mount --make-rshared /
ip link set lo up
echo 1 > /proc/sys/net/ipv4/ip_forward
touch ready
while :; do sleep 3600 & wait $!; done
"""
CONTAINERD_CONFIGURATION = f"""
version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
address = "{CONTAINERD}"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{PAUSE_IMAGE}"
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{CNI}"
conf_dir = "{{folder}}/cni"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = false
"""


@dataclass
class KubernetesNode:
    control: ControlPlane
    number: int
    components: dict[str, Component] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"node-{self.number}"

    @property
    def folder(self) -> Path:
        return self.control.folder / self.name

    @property
    def cgroup(self) -> str:
        return f"{self.control.folder.name}-{self.name}"

    @property
    def address(self) -> str:
        return f"{self.control.place.address.rpartition('.')[0]}.{10 + self.number}"

    @property
    def pods(self) -> str:
        """The addresses of its pods."""
        return f"{PODS.split('.0.0/')[0]}.{self.number}.0/24"

    # ── start and stop ────────────────────────────────────────────────────────────────────────────────────────────────

    def start(self, *, network_policies: bool) -> None:
        for name in ("lib", "log", "cni"):
            (self.folder / name).mkdir(parents=True)
        self._make_cgroups()
        self._start_namespaces()
        self._connect()
        self._write_configuration()
        self._start_in("containerd", ("containerd", "--config", "containerd.toml"))
        wait_until(lambda: self._run("ctr", "version").returncode == 0, within_s=START_S, otherwise=self.last_lines)
        self.import_image(busybox_image_file(PAUSE_IMAGE, *PAUSE))
        programs = self.control.programs
        self._start_in("kubelet", (str(programs / "kubelet"), *flags(self._kubelet_options())))
        self._start_in("kube-proxy", (str(programs / "kube-proxy"), "--config=kube-proxy.json"))
        if network_policies:
            self._enforce_policies()
        wait_until(self._is_ready, within_s=START_S, every_s=0.2, otherwise=self.last_lines)

    def _start_namespaces(self) -> None:
        for name, value in KERNEL.items():
            file = self.folder / "kernel" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{value}\n")
        names = [name for name in KERNEL if Path("/proc/sys", name).exists()]
        unshare = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child=KILL", "--mount-proc")
        environment = {**os.environ, "KERNEL_SETTINGS": " ".join(names)}
        self._namespaces = Component("namespaces", (*unshare, "sh", "-c", IN_ITS_NAMESPACES), self.folder, environment)
        self._namespaces.start()

        def is_made() -> bool:
            self._namespaces.must_run()
            return (self.folder / "ready").exists()

        wait_until(is_made, otherwise=self._namespaces.last_lines)

    @property
    def pid(self) -> int:
        """The first process of its namespaces."""
        assert self._namespaces.process is not None
        return children_of(self._namespaces.process.pid)[0]

    @property
    def _enter(self) -> tuple[str, ...]:
        return ("nsenter", "--target", str(self.pid), "--net", "--mount", "--pid", f"--wdns={self.folder}", "--")

    def _start_in(self, name: str, command: tuple[str, ...]) -> None:
        # nsenter waits for the program and does not hand on signals: the program ends with it.
        command = (*self._enter, "setpriv", "--pdeathsig", "KILL", "--", *command)
        self.components[name] = Component(name, command, self.folder)
        self.components[name].start()

    def _connect(self) -> None:
        """To the network of the control plane, in which every node reaches the pods of all."""
        gateway = self.control.place.address
        ip = (*self.control.place.enter, "ip")
        run(*ip, "link", "add", self.name, "type", "veth", "peer", "name", "eth0", "netns", str(self.pid))
        run(*ip, "link", "set", self.name, "master", "nodes", "up")
        run(*ip, "route", "add", self.pods, "via", self.address)
        self.run("ip", "address", "add", f"{self.address}/24", "dev", "eth0")
        self.run("ip", "link", "set", "eth0", "up")
        self.run("ip", "route", "add", "default", "via", gateway)

    def disconnect(self) -> None:
        """From the control plane and all other nodes. Its processes run on."""
        run(*self.control.place.enter, "ip", "link", "set", self.name, "down")

    def reconnect(self) -> None:
        run(*self.control.place.enter, "ip", "link", "set", self.name, "up")

    def _is_ready(self) -> bool:
        for component in self.components.values():
            component.must_run()
        nodes = self.control.get("nodes")["items"]
        conditions = [one for node in nodes if node["metadata"]["name"] == self.name for one in node["status"]["conditions"]]
        return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)

    def stop(self) -> None:
        """All its processes end, those of the pods included; nothing is cleaned up."""
        for component in self.components.values():
            component.stop(signal.SIGKILL)
        # `unshare` ignores SIGTERM while its child runs.
        self._namespaces.stop(signal.SIGKILL)

    def last_lines(self) -> str:
        return "\n".join(f"== {name}\n{component.last_lines()}" for name, component in self.components.items())

    # ── use ───────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _run(self, *command: str, stdin: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
        return subprocess.run([*self._enter, *command], input=stdin, capture_output=True, timeout=120)

    def run(self, *command: str, stdin: bytes = b"") -> str:
        """Run a command in the namespaces of the node."""
        return _output(command, self._run(*command, stdin=stdin))

    def import_image(self, file: bytes) -> None:
        """As `docker save` writes it; pods use it without a registry."""
        self.run("ctr", "--namespace", "k8s.io", "images", "import", "-", stdin=file)

    # ── cgroups ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _make_cgroups(self) -> None:
        is_unified = (CGROUPS / "cgroup.controllers").exists()
        for hierarchy in [CGROUPS] if is_unified else [path for path in CGROUPS.iterdir() if path.is_dir()]:
            (hierarchy / self.cgroup).mkdir()

    # ── configuration ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _write_configuration(self) -> None:
        certificates = self.control.certificates
        url = self.control.url
        self._kubeconfig = certificates.kubeconfig(url, f"system:node:{self.name}", "system:nodes")
        (self.folder / "containerd.toml").write_text(CONTAINERD_CONFIGURATION.format(folder=self.folder))
        (self.folder / "resolv.conf").write_text("")
        self._write("cni/pods.conflist", self._network())
        self._write("kubelet.json", self._kubelet_configuration())
        proxy = certificates.kubeconfig(url, "system:kube-proxy")
        self._write("kube-proxy.json", self._proxy_configuration(proxy))

    def _write(self, name: str, content: Mapping[str, Any]) -> None:
        (self.folder / name).write_text(json.dumps(content, indent=1))

    def _network(self) -> dict[str, Any]:
        """Every pod has its own link to the node, so that all its packets pass the firewall of the node."""
        ipam = {"type": "host-local", "ranges": [[{"subnet": self.pods}]], "routes": [{"dst": "0.0.0.0/0"}]}
        links = {"type": "ptp", "ipam": ipam}
        ports = {"type": "portmap", "capabilities": {"portMappings": True}}
        return {"cniVersion": "1.0.0", "name": "pods", "plugins": [links, ports]}

    def _kubelet_options(self) -> dict[str, object]:
        return {
            "config": "kubelet.json",
            "kubeconfig": self._kubeconfig,
            "hostname-override": self.name,
            "node-ip": self.address,
            "cert-dir": self.folder / "kubelet-certificates",
        }

    def _kubelet_configuration(self) -> dict[str, Any]:
        authority = str(self.control.certificates.authority.certificate)
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": self.address,
            "authentication": {"anonymous": {"enabled": False}, "x509": {"clientCAFile": authority}},
            "authorization": {"mode": "Webhook"},
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.cgroup}",
            "clusterDNS": ["10.96.0.10"],
            "clusterDomain": "cluster.local",
            "containerRuntimeEndpoint": f"unix://{CONTAINERD}",
            # The disk of this machine is not the subject of a test; a nearly full one must not evict pods.
            "evictionHard": {"memory.available": "1%", "nodefs.available": "0%", "imagefs.available": "0%"},
            "failCgroupV1": False,
            "failSwapOn": False,
            "imageGCHighThresholdPercent": 100,
            "protectKernelDefaults": True,
            "resolvConf": str(self.folder / "resolv.conf"),
        }

    def _proxy_configuration(self, kubeconfig: Path) -> dict[str, Any]:
        return {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "bindAddress": self.address,
            "clientConnection": {"kubeconfig": str(kubeconfig)},
            "clusterCIDR": PODS,
            # The limits of connection tracking are those of the whole machine.
            "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
            "hostnameOverride": self.name,
            "mode": "iptables",
        }

    # ── network policies ──────────────────────────────────────────────────────────────────────────────────────────────

    def _enforce_policies(self) -> None:
        kubeconfig = self.control.certificates.kubeconfig(self.control.url, f"network-policies-{self.name}", "network-policies")
        options = {
            "kubeconfig": kubeconfig,
            "hostname-override": self.name,
            "nfqueue-id": QUEUE,
            "fail-open": "false",
            "netfilter-bug-1766-fix": "false",  # corrected in Linux 6.12
            "disable-nri": "true",  # containerd 1.6 has none
            "metrics-bind-address": f"{self.address}:9080",
        }
        program = self.control.programs / "kube-network-policies"
        self._start_in("kube-network-policies", (str(program), *flags(options)))
        for rule in POLICY_RULES:
            self.run("iptables", "--table", "mangle", "--append", *rule)


def run(*command: str) -> str:
    return _output(command, subprocess.run(command, capture_output=True, timeout=60))


def _output(command: tuple[str, ...], done: "subprocess.CompletedProcess[bytes]") -> str:
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.decode(errors='replace')}"
    return done.stdout.decode()
