"""Answer the DNS queries of the pods of a Kubernetes cluster for tests: the names of services, and no others.

    python -m tests.support.kubernetes_dns KUBECONFIG ADDRESS

It stands in for CoreDNS. Every query is answered with what the API server says at that time.
"""

import socket
import struct
import sys
from typing import Any

from lightkube import ApiError, Client, KubeConfig
from lightkube.resources.core_v1 import Service

SERVICE = "10.96.0.10"
"""The address that kubelet writes into every pod's resolv.conf."""
DOMAIN = "svc.cluster.local"
PORT = 53
NOT_THERE = 404
ADDRESS_RECORD, INTERNET = 1, 1
ANSWER, AUTHORITATIVE, NO_SUCH_NAME = 0x8000, 0x0400, 3
LIVES_S = 5
HEADER = struct.Struct("!6H")


def service_objects(address: str) -> list[dict[str, Any]]:
    """The Service that leads pods to this address."""
    metadata = {"name": "kube-dns", "namespace": "kube-system"}
    port = {"name": "dns", "port": PORT, "protocol": "UDP"}
    return [
        {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"clusterIP": SERVICE, "ports": [port]}},
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {**metadata, "labels": {"kubernetes.io/service-name": "kube-dns"}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [address]}],
            "ports": [port],
        },
    ]


def asked_name(query: bytes) -> tuple[str, int]:
    """The name that a query asks for, and where the rest of its question begins."""
    labels, at = [], HEADER.size
    while length := query[at]:
        labels.append(query[at + 1 : at + 1 + length].decode("ascii", "replace").lower())
        at += 1 + length
    return ".".join(labels), at + 1


def service_address(client: Client, name: str) -> str | None:
    """Of `SERVICE.NAMESPACE.svc.cluster.local`."""
    service, _, rest = name.partition(".")
    namespace, _, domain = rest.partition(".")
    if domain != DOMAIN or not service or not namespace:
        return None
    try:
        found = client.get(Service, service, namespace=namespace)
    except ApiError as error:
        if error.status.code == NOT_THERE:
            return None
        raise
    return found.spec.clusterIP if found.spec else None


def answer(client: Client, query: bytes) -> bytes:
    number, flags, *_ = HEADER.unpack_from(query)
    name, at = asked_name(query)
    kind, _ = struct.unpack_from("!2H", query, at)
    question = query[HEADER.size : at + 4]
    address = service_address(client, name)
    records = b""
    if address is not None and kind == ADDRESS_RECORD:
        to_question = 0xC000 | HEADER.size
        records = struct.pack("!3HIH", to_question, ADDRESS_RECORD, INTERNET, LIVES_S, 4) + socket.inet_aton(address)
    state = ANSWER | AUTHORITATIVE | (flags & 0x0100) | (0 if address is not None else NO_SUCH_NAME)
    return HEADER.pack(number, state, 1, 1 if records else 0, 0, 0) + question + records


def main(kubeconfig: str, address: str) -> None:
    client = Client(KubeConfig.from_file(kubeconfig), trust_env=False)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listening:
        listening.bind((address, PORT))
        while True:
            query, sender = listening.recvfrom(1500)
            try:
                said = answer(client, query)
            except Exception as error:
                # Without an answer the resolver asks again.
                print(f"{sender}: {error!r}", file=sys.stderr, flush=True)
                continue
            listening.sendto(said, sender)


if __name__ == "__main__":
    main(*sys.argv[1:])
