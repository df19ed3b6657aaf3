"""Build the Kubernetes runtime, and the access of processes that have no rights in the cluster."""

import asyncio
import contextlib
from collections.abc import Callable

from torpor import __version__
from torpor.archives.store import StoreAddress
from torpor.assemble.engine_access import engine_access, installation_name
from torpor.assemble.engine_parts import EngineParts, RoleDatabases
from torpor.assemble.finding import Finding
from torpor.domain.errors import Failed, Refused, TorporError
from torpor.runtimes.kubernetes.cluster_client import CLAIMS, PODS, ClusterClient, ClusterRefusal
from torpor.runtimes.kubernetes.network_policies import NetworkRules
from torpor.runtimes.kubernetes.options import KubernetesOptions
from torpor.runtimes.kubernetes.pod_file import PodFile, parse_pod_file
from torpor.runtimes.kubernetes.runtime import KubernetesRuntime
from torpor.runtimes.object_labels import INSTALLATION
from torpor.settings import Settings
from torpor.store.kept_logs import StoredLogs

ANSWERS_WITHIN_S = 5.0
KIT_IMAGE = "torpor-kit"
"""The name of the image with the kit, which deploy/images/Dockerfile builds."""


async def kubernetes_engine(
    settings: Settings, databases: RoleDatabases, stack: contextlib.AsyncExitStack, on_change: Callable[[str], None]
) -> EngineParts:
    """Only a controller gets a runtime: API and proxy need no rights in the cluster."""
    require_object_store(settings)
    parts = await engine_access(settings, databases, stack)
    if databases.controller is None:
        return EngineParts(None, parts.access, parts.archives)
    options = await asyncio.to_thread(kubernetes_options, settings, await installation_name(databases))
    kept_logs = StoredLogs(databases.controller)
    runtime = KubernetesRuntime(options, installation_key=parts.key, kept_logs=kept_logs, on_change=on_change)
    stack.push_async_callback(runtime.close)
    return EngineParts(runtime, parts.access, parts.archives)


def require_object_store(settings: Settings) -> None:
    folder = StoreAddress.parse(settings.archives_at).directory
    if folder is not None:
        raise Refused(
            "bad_setting",
            f"with the runtime `kubernetes`, jobs run on other machines and cannot use the folder {folder} for archives. Set "
            "TORPOR_ARCHIVE_URL to an object store: s3://, gs:// or az://",
        )


def kubernetes_options(settings: Settings, installation: str) -> KubernetesOptions:
    pods = _pod_file(settings)
    return KubernetesOptions(
        installation=installation,
        image=settings.workspace_image,
        kit_image=settings.kubernetes_kit_image or f"{KIT_IMAGE}:{__version__}",
        grace_s=settings.workspace_stop_grace,
        user=settings.workspace_user,
        volume_size=settings.kubernetes_volume_size,
        kubeconfig=settings.kubernetes_config,
        context=settings.kubernetes_context,
        namespace=settings.kubernetes_namespace,
        storage_class=settings.kubernetes_storage_class,
        access_mode=settings.kubernetes_access_mode,
        pods=pods.workspaces,
        templates=pods.templates,
        jobs=pods.jobs,
        network=NetworkRules(settings.blocked_networks, settings.allowed_networks, pods.reached_from, pods.name_service)
        if settings.is_network_isolated
        else None,
    )


def _pod_file(settings: Settings) -> PodFile:
    path = settings.kubernetes_pod_file
    if path is None:
        return PodFile()
    try:
        return parse_pod_file(str(path), path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise Refused("bad_setting", f"kubernetes_pod_file {path} cannot be read: {error}") from error


async def kubernetes_findings(settings: Settings) -> list[Finding]:
    """Whether the cluster answers, and whether Torpor can list its objects there (for `torpor doctor`)."""
    advice = "see the settings that begin with kubernetes_, and deploy/kubernetes/role.yaml"
    try:
        require_object_store(settings)
        options = kubernetes_options(settings, "torpor")
        client = ClusterClient(options)
        client.connect()
    except Refused as refused:
        return [Finding("kubernetes", False, refused.message, advice, blocks=True)]
    try:
        async with asyncio.timeout(ANSWERS_WITHIN_S):
            uid = await client.namespace_uid()
            for kind in (PODS, CLAIMS):
                await client.listed(kind, f"{INSTALLATION}=none")
    except TimeoutError:
        message = f"{client.server} does not answer within {ANSWERS_WITHIN_S:g} s"
        return [Finding("kubernetes", False, message, advice, blocks=True)]
    except (TorporError, Failed, ClusterRefusal) as error:
        return [Finding("kubernetes", False, error.message, advice, blocks=True)]
    finally:
        await client.close()
    return [Finding("kubernetes", True, f"{client.server}, namespace {client.namespace} ({uid})")]
