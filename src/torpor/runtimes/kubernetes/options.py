"""The options of the Kubernetes runtime."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torpor.runtimes.kubernetes.network_policies import NetworkRules


@dataclass(frozen=True, slots=True)
class PodOptions:
    """What a cluster's administrator adds to pods. The names and values are those of Kubernetes."""

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    spec: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the pod's spec, such as nodeSelector, tolerations and affinity."""
    requests: Mapping[str, str] = field(default_factory=dict)
    """Such as cpu and memory. Default: those of a small program."""
    image_pull_policy: str = "IfNotPresent"


@dataclass(frozen=True, slots=True)
class KubernetesOptions:
    """The options; a name ends with its unit."""

    installation: str
    """The name of this installation in the namespace: several can share one."""
    image: str
    """The image of workspaces whose template names none."""
    kit_image: str
    """An image with the kit in /opt/torpor. Jobs run in it."""
    grace_s: float
    """Between the request to end and SIGKILL: long enough for an editor to save."""
    user: int
    """The user and group of homes, and of all processes of workspaces and jobs."""
    volume_size: str
    """Of a home's volume, as Kubernetes writes it: 10Gi"""
    access_mode: str
    """Of a home's volume: ReadWriteOnce"""
    kubeconfig: Path | None = None
    """None: that of the pod that Torpor runs in, or of the user."""
    context: str | None = None
    namespace: str | None = None
    """None: the namespace of the pod that Torpor runs in, or of the context."""
    storage_class: str | None = None
    """None: the default of the cluster."""
    pods: PodOptions = field(default_factory=PodOptions)
    """Of workspaces."""
    templates: Mapping[str, PodOptions] = field(default_factory=dict)
    """Of the workspaces of a template, instead of `pods`."""
    jobs: PodOptions = field(default_factory=PodOptions)
    network: NetworkRules | None = None
    """What the cluster permits; None: Torpor writes no NetworkPolicies."""
    page: int = 500
    """Objects of a list in one answer: its memory is bounded, and other work goes on between two answers."""
    call_s: float = 30.0
    """The timeout of one call to the cluster."""
    probe_s: float = 2.0
    """How long an observation waits for the agent of one pod."""
    ready_s: float = 300.0
    """How long the agent of a new pod watches whether its program is ready."""
    start_s: float = 900.0
    """How long a start waits for a node or an image."""

    def pods_of(self, template: str) -> PodOptions:
        return self.templates.get(template, self.pods)
