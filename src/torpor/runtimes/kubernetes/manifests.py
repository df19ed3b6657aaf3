"""Decide what the objects of a workspace look like: its claim, its pod, the pods of its jobs, and the Secret with a pod's key.

Pure. Every pod conforms to the pod security standard "restricted".
"""

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

from torpor.domain.names import OWN_FOLDER
from torpor.domain.records import Marker
from torpor.inside import home_volume
from torpor.inside.job_agent import JobPreparation
from torpor.inside.prepare_pod import Preparation
from torpor.kit import layout
from torpor.ports import CPU_WEIGHT, Container, Home
from torpor.runtimes.home_record import BIRTH_FILE, MARKER_FILE, HomeRecord, marker_facts
from torpor.runtimes.kubernetes.listing import FINALIZER, NUMBER, ListedClaim
from torpor.runtimes.kubernetes.options import KubernetesOptions, PodOptions
from torpor.runtimes.kubernetes.pod_state import MAIN, PREPARE
from torpor.runtimes.object_labels import (
    EPOCH,
    KEY,
    NONCE,
    ORDER,
    TEMPLATE,
    ObjectKind,
    container_name,
    home_labels,
    home_name,
)
from torpor.runtimes.program_orders import HOME, INSIDE, SOCKETS
from torpor.runtimes.running_container import AGENT_PORT

assert (home_volume.OWN, home_volume.BIRTH, home_volume.MARKER) == (OWN_FOLDER, BIRTH_FILE, MARKER_FILE)

KIT = str(layout.MOUNT)
KIT_TO = "/kit"
VOLUME = "/volume"
JOB_HOME = f"{VOLUME}/{home_volume.HOME}"
OWN_AT = "/opt/torpor-home"
"""Where a workspace sees Torpor's own folder of its volume, read-only."""
MARKER_PATH = f"{OWN_AT}/{MARKER_FILE}"
KEY_FROM, HANDOVER, KEY_FILE = "/run/torpor-key", "/run/torpor", "key"
SPEC = "torpor.spec"
"""Of a pod: identifies what it was created from, so that the next controller can continue with it."""
STRAGGLERS_S = 3.0
"""After the grace period: the agent kills what is left and ends."""
JOB_GRACE_S = 5
"""Long enough to abort an upload, since the store charges for incomplete ones."""
CPU_REQUEST_M = 100
MEMORY_REQUEST = 64 << 20
SMALL = "1Mi"
MANAGED_BY = {"app.kubernetes.io/managed-by": "torpor"}


# ── the claim ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def claim(options: KubernetesOptions, home: Home, record: HomeRecord) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "accessModes": [options.access_mode],
        "resources": {"requests": {"storage": options.volume_size}},
    }
    if options.storage_class is not None:
        spec["storageClassName"] = options.storage_class
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": home_name(home),
            "labels": {**MANAGED_BY, **home_labels(options.installation, ObjectKind.HOME, home, birth=record.birth)},
            "annotations": record_annotations(record),
            "finalizers": [FINALIZER],
        },
        "spec": spec,
    }


def record_annotations(record: HomeRecord) -> dict[str, str]:
    return {**record.labels(), NUMBER: str(record.number)}


def changed(listed: ListedClaim, **metadata: Any) -> dict[str, Any]:
    """A change of a claim that the cluster refuses if another controller was faster."""
    return {"metadata": {**metadata, "resourceVersion": listed.version, "uid": listed.uid}}


# ── the key ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def secret_name(pod: str, nonce: str) -> str:
    return f"{pod}-{nonce[:12]}"


def key_secret(options: KubernetesOptions, home: Home, name: str, claim_uid: str, greeting: bytes) -> dict[str, Any]:
    """The key of one pod. It is deleted as soon as the pod has read it; at the latest, it goes with the home's claim."""
    owner = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": home_name(home), "uid": claim_uid}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": name,
            "labels": {**MANAGED_BY, **home_labels(options.installation, ObjectKind.KEY, home)},
            "ownerReferences": [owner],
        },
        "immutable": True,
        "stringData": {KEY_FILE: greeting.decode()},
    }


# ── pods ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def workspace_pod(
    options: KubernetesOptions,
    container: Container,
    listed: ListedClaim,
    marker: Marker,
    *,
    nonce: str,
    key_id: str,
    epoch: int,
) -> dict[str, Any]:
    home, program = container.home, container.program
    name = container_name(home.workspace_id)
    added = options.pods_of(program.template)
    # The key is only read by the first container, which hands it over: processes of the workspace cannot read it.
    preparation = Preparation(
        kit_from=KIT,
        kit_to=KIT_TO,
        volume=VOLUME,
        birth=listed.birth,
        is_made=listed.is_made,
        marker=marker_facts(marker, listed.birth),
        key_from=f"{KEY_FROM}/{KEY_FILE}",
        key_to=f"{HANDOVER}/{KEY_FILE}",
    )
    resources = _resources(container, added)
    prepare = {
        "name": PREPARE,
        "image": options.kit_image,
        "imagePullPolicy": added.image_pull_policy,
        "command": [*layout.python_argv(), f"{INSIDE}/prepare_pod.py", preparation.argument()],
        "env": _env(layout.environment()),
        "resources": resources,
        "securityContext": _container_security(),
        "volumeMounts": [
            {"name": "home", "mountPath": VOLUME},
            {"name": "kit", "mountPath": KIT_TO},
            {"name": "key", "mountPath": KEY_FROM, "readOnly": True},
            {"name": "handover", "mountPath": HANDOVER},
        ],
    }
    main = {
        "name": MAIN,
        "image": program.image or options.image,
        "imagePullPolicy": added.image_pull_policy,
        "command": [*layout.python_argv(), f"{INSIDE}/start_engine_agent.py", f"{HANDOVER}/{KEY_FILE}"],
        "env": _env({name: value for name, value in layout.environment().items() if name != "SSL_CERT_FILE"}),
        "workingDir": HOME,
        "ports": [{"name": "agent", "containerPort": AGENT_PORT}],
        "resources": resources,
        "securityContext": _container_security(),
        "volumeMounts": [
            {"name": "home", "mountPath": HOME, "subPath": home_volume.HOME},
            {"name": "home", "mountPath": OWN_AT, "subPath": OWN_FOLDER, "readOnly": True},
            {"name": "kit", "mountPath": KIT, "readOnly": True},
            {"name": "handover", "mountPath": HANDOVER},
            {"name": "sockets", "mountPath": SOCKETS},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - the folder of the workspace
        ],
    }
    spec = {
        **_spec(options, added, home, secret_name(name, nonce)),
        "hostname": "workspace",
        "terminationGracePeriodSeconds": math.ceil(options.grace_s + STRAGGLERS_S),
        "initContainers": [prepare],
        "containers": [main],
    }
    spec["volumes"] += [
        {"name": "kit", "emptyDir": {}},
        {"name": "handover", "emptyDir": {"medium": "Memory", "sizeLimit": SMALL}},
        {"name": "sockets", "emptyDir": {"medium": "Memory", "sizeLimit": SMALL}},
        {"name": "tmp", "emptyDir": {}},
    ]
    facts = {NONCE: nonce, KEY: key_id, EPOCH: str(epoch), TEMPLATE: program.template, SPEC: spec_id(spec, nonce)}
    return _pod(options, added, ObjectKind.WORKSPACE, home, name, spec, facts)


def job_pod(
    options: KubernetesOptions,
    home: Home,
    listed: ListedClaim,
    name: str,
    *,
    nonce: str,
    key_id: str,
    epoch: int | None,
    order: str = "",
) -> dict[str, Any]:
    added = options.jobs
    preparation = JobPreparation(VOLUME, listed.birth, listed.is_made, f"{KEY_FROM}/{KEY_FILE}")
    requests = {"cpu": f"{CPU_REQUEST_M}m", "memory": str(MEMORY_REQUEST), **added.requests}
    main = {
        "name": MAIN,
        "image": options.kit_image,
        "imagePullPolicy": added.image_pull_policy,
        "command": [*layout.python_argv(), f"{INSIDE}/job_agent.py", preparation.argument()],
        "env": _env(layout.environment()),
        "workingDir": "/",
        "ports": [{"name": "agent", "containerPort": AGENT_PORT}],
        "resources": {"requests": requests},
        "securityContext": _container_security(),
        "volumeMounts": [
            {"name": "home", "mountPath": VOLUME},
            {"name": "key", "mountPath": KEY_FROM, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - the folder of the job
        ],
    }
    spec = {
        **_spec(options, added, home, secret_name(name, nonce)),
        "terminationGracePeriodSeconds": JOB_GRACE_S,
        "containers": [main],
    }
    spec["volumes"] += [{"name": "tmp", "emptyDir": {}}]
    facts = {NONCE: nonce, KEY: key_id, **({ORDER: order} if order else {})}
    if epoch is not None:
        facts[EPOCH] = str(epoch)
    return _pod(options, added, ObjectKind.JOB, home, name, spec, facts)


def spec_id(spec: Mapping[str, Any], nonce: str) -> str:
    """Identifies the spec of a pod, whichever controller creates it."""
    return hashlib.sha256(json.dumps(spec, sort_keys=True).replace(nonce[:12], "").encode()).hexdigest()[:32]


def _pod(
    options: KubernetesOptions,
    added: PodOptions,
    kind: ObjectKind,
    home: Home,
    name: str,
    spec: Mapping[str, Any],
    facts: Mapping[str, str],
) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {**added.labels, **MANAGED_BY, **home_labels(options.installation, kind, home)},
            "annotations": {**added.annotations, **facts},
        },
        "spec": spec,
    }


def _spec(options: KubernetesOptions, added: PodOptions, home: Home, secret: str) -> dict[str, Any]:
    """What all pods have in common. Torpor's own fields replace those of an administrator."""
    user = options.user
    return {
        **added.spec,
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": user,
            "runAsGroup": user,
            "fsGroup": user,
            # Otherwise every mount would change the modes of all files, such as those of ssh keys.
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumes": [
            {"name": "home", "persistentVolumeClaim": {"claimName": home_name(home)}},
            # Optional: it is deleted while the pod runs.
            {"name": "key", "secret": {"secretName": secret, "optional": True, "defaultMode": 0o440}},
        ],
    }


def _container_security() -> dict[str, Any]:
    return {"allowPrivilegeEscalation": False, "privileged": False, "capabilities": {"drop": ["ALL"]}}


def _resources(container: Container, added: PodOptions) -> dict[str, Any]:
    limits = {"memory": str(container.limits.memory_bytes)}
    cpu_m = CPU_REQUEST_M * container.program.cpu_weight // CPU_WEIGHT
    if container.limits.cpu_cores is not None:
        limits["cpu"] = f"{math.ceil(container.limits.cpu_cores * 1000)}m"
        cpu_m = min(cpu_m, math.ceil(container.limits.cpu_cores * 1000))
    memory = min(MEMORY_REQUEST, container.limits.memory_bytes)
    return {"limits": limits, "requests": {"cpu": f"{max(1, cpu_m)}m", "memory": str(memory), **added.requests}}


def _env(variables: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in variables.items()]
