"""NetworkPolicies on a cluster that enforces them: what a workspace reaches, and what reaches its agent."""

import contextlib
import json
import socket
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pytest

from tests.contracts.runtime_contract import FENCE, unheard
from tests.runtimes.docker.test_jobs import python_job
from tests.runtimes.docker.test_product import READ, WRITE
from tests.runtimes.kubernetes.cluster_steps import START_S, pod_of, running
from tests.runtimes.kubernetes.conftest import KIT_IMAGE, NAMESPACE, InstalledCluster, MakeRuntime, installed_cluster
from tests.support.image_files import busybox_image_file
from tests.support.kubernetes_cluster import ADDRESS
from tests.support.kubernetes_control_plane import API_SERVICE
from tests.support.kubernetes_node import run
from tests.support.product import Product
from tests.support.waiting import until, wait_until
from torpor.domain.networks import BLOCKED
from torpor.kit import layout
from torpor.ports import Home
from torpor.runtimes.kubernetes.network_policies import FROM, NetworkRules
from torpor.runtimes.kubernetes.runtime import KubernetesRuntime
from torpor.runtimes.object_labels import INSTALLATION
from torpor.runtimes.running_container import AGENT_PORT

pytestmark = pytest.mark.anyio

Targets = dict[str, tuple[str, int]]

BUSYBOX = "torpor-test-busybox:1"
ELSEWHERE = "elsewhere"
"""A namespace of other programs."""
PORT = 8080
NAME_SERVICE = "10.96.0.10"
"""As kubelet writes it into every pod."""
NAME = "service.torpor.test."
INTERNET = "203.0.113.10"
OUTSIDE = {
    "the internet": INTERNET,
    "metadata of clouds": "169.254.169.254",
    "metadata of Azure": "168.63.129.16",
    "a private network 10/8": "10.1.2.3",
    "a private network 172.16/12": "172.20.1.2",
    "a private network 192.168/16": "192.168.7.8",
    "a private network 100.64/10": "100.70.1.2",
}
"""Addresses of hosts outside of the cluster, behind the default route of its nodes."""
CONNECT = """
import json, socket, sys, threading
reached = []
def connect(name, host, port):
    try:
        socket.create_connection((host, port), 3).close()
        reached.append(name)
    except OSError:
        pass
attempts = [threading.Thread(target=connect, args=(name, *place)) for name, place in json.loads(sys.argv[1]).items()]
for attempt in attempts: attempt.start()
for attempt in attempts: attempt.join()
print(json.dumps(reached))
"""
# A name service: every name has one address.
ANSWER = """
import socket, sys
address, web = sys.argv[1:]
other_port = socket.create_server(("", int(web)))
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("", 53))
while True:
    query, client = server.recvfrom(512)
    end = query.index(0, 12) + 5
    answer = b"\\xc0\\x0c\\0\\x01\\0\\x01\\0\\0\\0\\x3c\\0\\x04" + socket.inet_aton(address)
    server.sendto(query[:2] + b"\\x81\\x80\\0\\x01\\0\\x01\\0\\0\\0\\0" + query[12:end] + answer, client)
"""
# It does not end with the command that started it, which waits until it has a session of its own.
LISTEN = """
import os, socket, sys, time
server = socket.create_server(("", int(sys.argv[1])))
is_alone, tell = os.pipe()
if os.fork() == 0:
    os.setsid()
    for descriptor in (*range(3), tell): os.close(descriptor)
    time.sleep(3600)
os.close(tell)
os.read(is_alone, 1)
"""
RESOLVE = "import socket, sys; print(socket.getaddrinfo(sys.argv[1], None, socket.AF_INET)[0][4][0])"


@pytest.fixture(scope="module")
def installed() -> Iterator[InstalledCluster]:
    """With hosts outside of the cluster, a name service, and pods of others."""
    with installed_cluster(network_policies=True) as made:
        made.cluster.nodes[0].import_image(busybox_image_file(BUSYBOX))
        made.cluster.control.apply(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": ELSEWHERE}},
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {"name": "kube-dns", "namespace": "kube-system"},
                "spec": {
                    "clusterIP": NAME_SERVICE,
                    "selector": {"k8s-app": "kube-dns"},
                    "ports": [{"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "web", "port": PORT, "protocol": "TCP"}],
                },
            },
        )
        for namespace in (ELSEWHERE, "kube-system"):
            made.cluster.wait_for_service_account(namespace)
        web = ("/busybox", "httpd", "-f", "-p", str(PORT))
        names = (*layout.python_argv(), "-c", ANSWER, INTERNET, str(PORT))
        made.cluster.control.apply(
            pod("kube-system", "names", KIT_IMAGE, names, {"k8s-app": "kube-dns"}),
            pod(ELSEWHERE, "stranger", BUSYBOX, web, {}),
            pod(ELSEWHERE, "part-of-torpor", BUSYBOX, web, {"app.kubernetes.io/part-of": "torpor"}),
        )
        for namespace, name in (("kube-system", "names"), (ELSEWHERE, "stranger"), (ELSEWHERE, "part-of-torpor")):
            wait_until(partial(address_of, made, namespace, name), within_s=START_S)
        with hosts_outside(made):
            yield made


def pod(namespace: str, name: str, image: str, command: Sequence[str], labels: dict[str, str]) -> dict[str, Any]:
    env = [{"name": name, "value": value} for name, value in layout.environment().items()] if image == KIT_IMAGE else []
    container = {"name": "main", "image": image, "imagePullPolicy": "Never", "command": command, "env": env}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 0},
    }


def address_of(installed: InstalledCluster, namespace: str, name: str) -> str:
    status = installed.cluster.control.get("pod", name, "--namespace", namespace)["status"]
    return str(status["podIP"]) if status.get("phase") == "Running" else ""


@contextlib.contextmanager
def hosts_outside(installed: InstalledCluster) -> Iterator[None]:
    """The host of the control plane, which is the gateway of the nodes, has these addresses too."""
    enter = installed.cluster.control.place.enter
    for address in OUTSIDE.values():
        run(*enter, "ip", "address", "add", f"{address}/32", "dev", "lo")
    with contextlib.ExitStack() as stack, installed.cluster.network():
        for address in OUTSIDE.values():
            stack.enter_context(socket.create_server((address, PORT)))
        yield


def rules(*allowed: str) -> NetworkRules:
    """Torpor runs outside of the cluster, in the network of its control plane."""
    return NetworkRules(BLOCKED, allowed, (*FROM, {"ipBlock": {"cidr": f"{ADDRESS}/32"}}))


async def reached(runtime: KubernetesRuntime, home: Home, targets: Targets) -> set[str]:
    """By a process of the workspace."""
    done = await runtime.execute(home.workspace_id, [*layout.python_argv(), "-c", CONNECT, json.dumps(targets)], b"")
    assert done.exit_code == 0, done.stderr
    return set(json.loads(done.stdout))


async def resolved(runtime: KubernetesRuntime, home: Home) -> str:
    done = await runtime.execute(home.workspace_id, [*layout.python_argv(), "-c", RESOLVE, NAME], b"")
    return done.stdout.decode().strip() or done.stderr.decode()[-500:]


def agent_is_reached_from(installed: InstalledCluster, name: str, address: str) -> bool:
    script = f"/busybox nc -w 3 {address} {AGENT_PORT} < /dev/null > /dev/null 2>&1 && echo yes || echo no"
    words = ("exec", name, "--namespace", ELSEWHERE, "--", "/busybox", "sh", "-c", script)
    return installed.cluster.control.kubectl(*words).strip() == "yes"


def remove_policies(installed: InstalledCluster, installation: str) -> None:
    installed.kubectl("delete", "networkpolicies", "--selector", f"{INSTALLATION}={installation}")


def host_of(installed: InstalledCluster, home: Home) -> str:
    found = pod_of(installed, home)
    assert found is not None
    return str(found["status"]["podIP"])


async def test_a_workspace_reaches_the_internet_and_names_and_nothing_else(
    installed: InstalledCluster, make_runtime: MakeRuntime, installation: str
) -> None:
    """Every attempt succeeds as soon as the policies are removed."""
    runtime = make_runtime(network=rules())
    await runtime.start()
    one, two = await running(installed, runtime), await running(installed, runtime)
    listening = await runtime.execute(two.workspace_id, [*layout.python_argv(), "-c", LISTEN, str(PORT)], b"")
    assert listening.exit_code == 0, listening.stderr
    node = installed.cluster.nodes[0]
    names = address_of(installed, "kube-system", "names")
    targets: Targets = {
        "another workspace's agent": (host_of(installed, two), AGENT_PORT),
        "another workspace's program": (host_of(installed, two), PORT),
        "a pod of another namespace": (address_of(installed, ELSEWHERE, "stranger"), PORT),
        "another port of the name service": (names, PORT),
        "another port of the name service's address": (NAME_SERVICE, PORT),
        "the API server": (ADDRESS, 6443),
        "the API server's service": (API_SERVICE, 443),
        "etcd": (ADDRESS, 2379),
        "the kubelet of its node": (node.address, 10250),
        **{name: (address, PORT) for name, address in OUTSIDE.items()},
    }
    assert await reached(runtime, one, targets) == {"the internet"}
    assert await resolved(runtime, one) == INTERNET
    remove_policies(installed, installation)
    await until(lambda: agent_is_reached_from(installed, "stranger", host_of(installed, two)), within_s=START_S)
    assert await reached(runtime, one, targets) == targets.keys(), "otherwise the other attempts prove nothing"


async def test_only_torpor_reaches_an_agent(installed: InstalledCluster, make_runtime: MakeRuntime, installation: str) -> None:
    runtime = make_runtime(network=rules())
    await runtime.start()
    host = host_of(installed, await running(installed, runtime))
    assert not agent_is_reached_from(installed, "stranger", host)
    assert agent_is_reached_from(installed, "part-of-torpor", host)
    remove_policies(installed, installation)
    await until(lambda: agent_is_reached_from(installed, "stranger", host), within_s=START_S)


async def test_an_allowed_network_is_reached_and_jobs_reach_a_private_store(
    installed: InstalledCluster, make_runtime: MakeRuntime
) -> None:
    allowed, store = OUTSIDE["a private network 192.168/16"], OUTSIDE["a private network 10/8"]
    runtime = make_runtime(network=rules(f"{allowed}/32"))
    await runtime.start()
    home = await running(installed, runtime)
    assert await reached(runtime, home, {"allowed": (allowed, PORT), "store": (store, PORT)}) == {"allowed"}
    await runtime.ensure_no_container(home.workspace_id, FENCE)
    code = f"import socket; socket.create_connection(({store!r}, {PORT}), 3); say(result={{'connected': True}})"
    assert await runtime.run_at_home(home, python_job(code), FENCE, unheard) == {"connected": True}


def test_the_product_works_while_the_policies_are_enforced(installed: InstalledCluster, product: Product) -> None:
    """Its archive store and its controllers are in a private network."""
    product.ok("create", "one", "--wait")
    product.ok("exec", "one", "--", "sh", "-c", WRITE)
    before = product.run("exec", "one", "--", "sh", "-c", READ).stdout
    assert len(installed.get("networkpolicy", "--namespace", NAMESPACE)["items"]) == 2
    product.ok("archive", "one", "--wait")
    product.ok("start", "one", "--wait")
    assert product.run("exec", "one", "--", "sh", "-c", READ).stdout == before
