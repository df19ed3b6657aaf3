"""Decide which connections of workspaces and jobs the cluster permits.

Pure. Agents are reached only from Torpor's own pods. Workspaces reach the internet and the cluster's name service, and neither
other pods nor private networks. Jobs reach the archive store, which may be in a private network.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_network
from typing import Any

from torpor.runtimes.object_labels import INSTALLATION, KIND, ObjectKind
from torpor.runtimes.running_container import AGENT_PORT

FROM: tuple[Mapping[str, Any], ...] = (
    {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app.kubernetes.io/part-of": "torpor"}}},
)
"""The peers that reach agents: Torpor's pods, in any namespace."""
DNS: tuple[Mapping[str, Any], ...] = (
    {"namespaceSelector": {}, "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}}},
    {"ipBlock": {"cidr": "169.254.20.10/32"}},
)
"""The name service: that of the cluster, and its usual cache on each node."""
DNS_PORTS = [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]


@dataclass(frozen=True, slots=True)
class NetworkRules:
    blocked_networks: tuple[str, ...]
    allowed_networks: tuple[str, ...] = ()
    """Exceptions from `blocked_networks`."""
    reached_from: Sequence[Mapping[str, Any]] = FROM
    """NetworkPolicyPeers."""
    name_service: Sequence[Mapping[str, Any]] = DNS
    """NetworkPolicyPeers."""


def network_policies(installation: str, rules: NetworkRules) -> tuple[dict[str, Any], dict[str, Any]]:
    """For workspaces, and for jobs."""
    return (
        _policy(installation, ObjectKind.WORKSPACE, rules, _egress(rules)),
        _policy(installation, ObjectKind.JOB, rules, [{}]),
    )


def _policy(installation: str, kind: ObjectKind, rules: NetworkRules, egress: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {
            "name": f"{installation}-{kind.value}",
            "labels": {INSTALLATION: installation, KIND: ObjectKind.NETWORK.value},
        },
        "spec": {
            "podSelector": {"matchLabels": {INSTALLATION: installation, KIND: kind.value}},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": list(rules.reached_from), "ports": [{"protocol": "TCP", "port": AGENT_PORT}]}],
            "egress": egress,
        },
    }


def _egress(rules: NetworkRules) -> list[dict[str, Any]]:
    everywhere = [_block(cidr, rules.blocked_networks) for cidr in ("0.0.0.0/0", "::/0")]
    exceptions = [{"ipBlock": {"cidr": str(ip_network(network))}} for network in rules.allowed_networks]
    return [{"to": [*everywhere, *exceptions]}, {"to": list(rules.name_service), "ports": DNS_PORTS}]


def _block(cidr: str, blocked: Sequence[str]) -> dict[str, Any]:
    version = ip_network(cidr).version
    # A network that contains all others of the family cannot be an exception of it.
    excepted = [str(one) for one in map(ip_network, blocked) if one.version == version and one.prefixlen > 0]
    return {"ipBlock": {"cidr": cidr, **({"except": excepted} if excepted else {})}}
