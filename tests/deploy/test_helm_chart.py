"""The chart of deploy/helm renders what it promises, and refuses wrong values with a clear message. It needs no cluster."""

import base64
import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tools.kubernetes import KUBERNETES

from tests.support.helm import CHART, NAMESPACE, RELEASE, Rendered, helm_program, render, run_helm
from torpor import __version__
from torpor.domain.errors import Refused
from torpor.proxy.forwarded import TrustedProxies
from torpor.runtimes.kubernetes.network_policies import FROM
from torpor.runtimes.kubernetes.pod_file import parse_pod_file
from torpor.settings import PREFIX, SECRET, Settings, load

ROOT = Path(__file__).parents[2]
HOW_TO = ROOT / "docs" / "how-to" / "run-on-kubernetes.md"
ROLE = ROOT / "deploy" / "kubernetes" / "role.yaml"
KEY = base64.b64encode(bytes(range(32))).decode()
MINIMAL: dict[str, Any] = {
    "host": "torpor.example.com",
    "secrets": {"existingSecret": "torpor"},
    "installationKey": {"existingSecret": "torpor-key"},
    "settings": {"archive_url": "s3://bucket/homes"},
}
VARIABLES = {
    "TORPOR_DATABASE_URL": "postgresql://torpor:secret@db.example.com/torpor",
    "TORPOR_REDIS_URL": "redis://:secret@bus.example.com/0",
    "TORPOR_ARCHIVE_URL": "s3://bucket/homes",
    "AWS_SECRET_ACCESS_KEY": "secret",
}
EVERYTHING: dict[str, Any] = {
    "host": "torpor.example.com",
    "workspaceDomain": "workspaces.example.org",
    "fullnameOverride": "tor",
    "image": {"repository": "registry.example.com/torpor", "digest": f"sha256:{'a' * 64}", "pullPolicy": "Always"},
    "kitImage": {"repository": "registry.example.com/torpor-kit", "tag": "7"},
    "imagePullSecrets": [{"name": "registry"}],
    "secrets": {"values": VARIABLES},
    "installationKey": {"value": KEY},
    "settings": {
        "session_ttl": 2592000,
        "drain_grace": 12.5,
        "unconfined": True,
        "public_url": "https://torpor.example.com:8443",
        "trusted_proxies": "203.0.113.0/24",
    },
    "environment": {"AWS_REGION": "eu-central-1"},
    "firstAdministrator": "eve",
    "workspaces": {
        "namespace": "workspaces",
        "pods": {
            "workspaces": {"nodeSelector": {"pool": "workspaces"}},
            "templates": {"shell": {"imagePullSecrets": [{"name": "shells"}]}, "jupyterlab": {"schedulerName": "gpu"}},
            "jobs": {"priorityClassName": "low", "imagePullSecrets": [{"name": "jobs"}, {"name": "registry"}]},
        },
        "templates": {"shell": 'title = "Shell"\n'},
    },
    "api": {"replicas": 3, "podAnnotations": {"example.com/a": "b"}, "priorityClassName": "high"},
    "proxy": {"replicas": 5, "service": {"type": "LoadBalancer", "port": 8000, "annotations": {"example.com/a": "b"}}},
    "controller": {"replicas": 4, "nodeSelector": {"pool": "system"}, "tolerations": [{"key": "a", "operator": "Exists"}]},
    "ingress": {"className": "nginx", "annotations": {"example.com/a": "b"}, "tls": {"workspacesSecretName": "wildcard"}},
    "networkPolicy": {
        "proxyFrom": [{"namespaceSelector": {"matchLabels": {"name": "ingress"}}}],
        "metricsFrom": [{"podSelector": {}}],
    },
    "podDisruptionBudget": {"maxUnavailable": "50%"},
    "metrics": {"serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}}},
    "podLabels": {"team": "tools"},
    "extraVolumes": [{"name": "more", "emptyDir": {}}],
    "extraVolumeMounts": [{"name": "more", "mountPath": "/more"}],
}
LEAST: dict[str, Any] = {
    **MINIMAL,
    "settings": {**MINIMAL["settings"], "trusted_proxies": ""},
    "ingress": {"enabled": False, "tls": {"enabled": False}},
    "rbac": {"create": False},
    "networkPolicy": {"enabled": False},
    "podDisruptionBudget": {"enabled": False},
}


def documented() -> dict[str, Any]:
    """The values of the how-to."""
    (text,) = re.findall(r"<!-- values -->\n```yaml\n(.*?)```", HOW_TO.read_text(), re.DOTALL)
    values: dict[str, Any] = yaml.safe_load(text)
    return values


VALUES = {"minimal": MINIMAL, "everything": EVERYTHING, "least": LEAST, "documented": documented()}


@pytest.fixture(autouse=True)
def _needs_helm() -> None:
    helm_program()


@pytest.fixture(params=VALUES)
def rendered(request: pytest.FixtureRequest, tmp_path: Path) -> Rendered:
    return Rendered(VALUES[request.param], tmp_path)


@pytest.fixture
def minimal(tmp_path: Path) -> Rendered:
    return Rendered(MINIMAL, tmp_path)


@pytest.fixture
def everything(tmp_path: Path) -> Rendered:
    return Rendered(EVERYTHING, tmp_path)


def containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pod["spec"]["containers"]
    return found


def variables_of(container: dict[str, Any]) -> dict[str, str]:
    return {one["name"]: one["value"] for one in container.get("env", ())}


def with_value(path: str, value: object) -> dict[str, Any]:
    """The minimal values, and one more."""
    values = copy.deepcopy(MINIMAL)
    *parents, last = path.split(".")
    inner = values
    for name in parents:
        inner = inner.setdefault(name, {})
    inner[last] = value
    return values


# ── the chart ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", VALUES)
def test_lint_finds_nothing(name: str, tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(VALUES[name]))
    done = run_helm("lint", "--strict", str(CHART), "--values", str(file), "--kube-version", KUBERNETES)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout


def test_its_version_is_that_of_the_product() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


def schema_parts(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, part in schema.get("properties", {}).items():
        yield from schema_parts(part, f"{path}.{name}" if path else name)


def test_the_schema_describes_every_value_and_closes_every_object() -> None:
    schema = yaml.safe_load((CHART / "values.schema.json").read_text())
    parts = dict(schema_parts(schema))
    assert [path for path, part in parts.items() if path and not part.get("description", "").endswith(".")] == []
    assert [path for path, part in parts.items() if "properties" in part and part["additionalProperties"] is not False] == []

    def paths(values: dict[str, Any], prefix: str = "") -> Iterator[str]:
        for name, value in values.items():
            yield f"{prefix}{name}"
            if isinstance(value, dict) and "properties" in parts.get(f"{prefix}{name}", {}):
                yield from paths(value, f"{prefix}{name}.")

    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    inner = {path for path in parts if path and not path.startswith(("global", "workspaces.pods."))}
    assert set(paths(defaults)) == inner


def test_a_value_that_a_template_needs_cannot_be_removed() -> None:
    """`null` removes a value. Empty ones, resources and the security context can be removed."""
    parts = dict(schema_parts(yaml.safe_load((CHART / "values.schema.json").read_text())))
    needed, maps = {"host"}, {"settings", "secrets.values", "workspaces.pods"}

    def look(values: dict[str, Any], prefix: str = "") -> None:
        for name, value in values.items():
            is_object = "properties" in parts[prefix + name]
            if is_object or prefix + name in maps or (value != "" and not isinstance(value, dict | list)):
                needed.add(prefix + name)
            if is_object:
                look(value, f"{prefix}{name}.")

    look(yaml.safe_load((CHART / "values.yaml").read_text()))
    given = {f"{path}.{name}" if path else name for path, part in parts.items() for name in part.get("required", ())}
    assert given == needed


# ── refusals ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("replicas", 3, "additional properties 'replicas' not allowed"),
        ("ingress.tsl", {}, "at '/ingress': additional properties 'tsl' not allowed"),
        ("host", "", "host is missing: the host name of the dashboard and the API, such as torpor.example.com"),
        ("host", "https://torpor.example.com", "at '/host': 'https://torpor.example.com' does not match pattern"),
        ("api.replicas", "two", "at '/api/replicas': got string, want integer"),
        ("proxy.replicas", -1, "at '/proxy/replicas': minimum: got -1, want 0"),
        ("image.pullPolicy", "never", "at '/image/pullPolicy': value must be one of"),
        ("settings.archive_url", ["s3://a"], "at '/settings/archive_url': got array, want boolean or number or string"),
        ("settings.Archive-URL", "s3://a", "invalid propertyName 'Archive-URL'"),
        ("settings.database_url", "postgresql://", "use instead: TORPOR_DATABASE_URL in `secrets`"),
        ("settings.port", 80, "settings.port is decided by the chart; use instead: `proxy.service.port`"),
        ("environment.TORPOR_GC", "off", "environment.TORPOR_GC is a setting; use settings.gc"),
        ("secrets", {}, "secrets: TORPOR_DATABASE_URL is missing. Set secrets.existingSecret"),
        ("secrets", {"values": {"TORPOR_DATABASE_URL": "postgresql://"}}, "secrets: TORPOR_REDIS_URL is missing"),
        ("secrets.values", {"A": "b"}, "secrets: give either `existingSecret` or `values`, not both"),
        ("installationKey", {}, "installationKey is missing. Create one and keep it: kubectl create secret"),
        ("installationKey.value", KEY, "installationKey: give either `existingSecret` or `value`, not both"),
        ("installationKey.value", "short", "at '/installationKey/value'"),
        ("settings", None, "at '': missing property 'settings'"),
        ("ingress.tls", None, "at '/ingress': missing property 'tls'"),
        ("networkPolicy.enabled", None, "at '/networkPolicy': missing property 'enabled'"),
        ("firstAdministrator", "Eve", "at '/firstAdministrator': 'Eve' does not match pattern"),
        ("firstAdministrator", "eve: {", "at '/firstAdministrator'"),
        ("fullnameOverride", "Torpor", "at '/fullnameOverride': 'Torpor' does not match pattern"),
        ("fullnameOverride", "torpor_1", "at '/fullnameOverride'"),
        ("nameOverride", "tor.por", "at '/nameOverride': 'tor.por' does not match pattern"),
        ("ingress.enabled", False, "settings.trusted_proxies is missing. Without an Ingress"),
        ("proxy.service.type", "NodePort", "settings.trusted_proxies is missing."),
        ("proxy.service.type", "LoadBalancer", 'or to "" if there is none'),
    ],
)
def test_a_wrong_value_is_refused(path: str, value: object, said: str, tmp_path: Path) -> None:
    done = render(with_value(path, value), tmp_path)
    assert done.returncode != 0
    assert said in done.stderr


def test_an_object_store_is_required(tmp_path: Path) -> None:
    without = {name: value for name, value in VARIABLES.items() if name != "TORPOR_ARCHIVE_URL"}
    done = render({**MINIMAL, "settings": {}, "secrets": {"values": without}}, tmp_path)
    assert "settings.archive_url is missing: the URL of the object store for archives" in done.stderr


# ── objects ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_names_are_unique_and_every_object_has_the_labels_of_the_release(rendered: Rendered) -> None:
    names = [(one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]) for one in rendered.objects]
    assert len(set(names)) == len(names)
    for one in rendered.objects:
        labels = one["metadata"]["labels"]
        assert labels["app.kubernetes.io/instance"] == RELEASE
        assert (labels["app.kubernetes.io/managed-by"], labels["app.kubernetes.io/name"]) == ("Helm", "torpor")


def test_selectors_find_the_pods_of_one_role(rendered: Rendered) -> None:
    labels = {name: pod["metadata"]["labels"] for name, pod in rendered.pods.items()}

    def found(selector: dict[str, str]) -> list[str]:
        return [name for name, those in labels.items() if selector.items() <= those.items()]

    for one in rendered.all("Deployment"):
        name = one["metadata"]["name"]
        assert found(one["spec"]["selector"]["matchLabels"]) == [name]
    for one in [*rendered.all("PodDisruptionBudget"), *rendered.all("NetworkPolicy")]:
        selector = one["spec"].get("selector") or one["spec"]["podSelector"]
        assert found(selector["matchLabels"]) == [one["metadata"]["name"]]
    serving = {one["metadata"]["name"] for one in rendered.all("Deployment")}
    for one in rendered.all("Service"):
        name = one["metadata"]["name"]
        assert set(found(one["spec"]["selector"])) == (serving if name.endswith("-metrics") else {name})
        for port in one["spec"]["ports"]:
            for pod in found(one["spec"]["selector"]):
                assert port["targetPort"] in [each["name"] for each in containers(rendered.pods[pod])[0]["ports"]]


def test_every_pod_is_restricted_and_only_controllers_have_a_token(rendered: Rendered) -> None:
    assert len(rendered.pods) == 6
    for name, pod in rendered.pods.items():
        spec = pod["spec"]
        assert (spec["securityContext"]["runAsNonRoot"], spec["securityContext"]["runAsUser"]) == (True, 65532)
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        assert spec["enableServiceLinks"] is False
        for container in containers(pod):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "runAsNonRoot": True,
                "capabilities": {"drop": ["ALL"]},
            }
        assert {next(iter(volume.keys() - {"name"})) for volume in spec.get("volumes", ())} <= {
            "emptyDir",
            "secret",
            "configMap",
        }
        assert spec["automountServiceAccountToken"] is name.endswith(("-controller", "-doctor"))
        assert spec.get("serviceAccountName", "").endswith("-controller") is spec["automountServiceAccountToken"]
    for account in rendered.all("ServiceAccount"):
        assert account["automountServiceAccountToken"] is False


def test_every_volume_is_mounted_from_an_object_of_the_chart_or_an_existing_one(rendered: Rendered) -> None:
    existing = {"torpor", "torpor-key"}
    known = existing | {one["metadata"]["name"] for kind in ("Secret", "ConfigMap") for one in rendered.all(kind)}
    for pod in rendered.pods.values():
        volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes", ())}
        for container in containers(pod):
            assert {mount["name"] for mount in container.get("volumeMounts", ())} <= volumes.keys()
            assert {one["secretRef"]["name"] for one in container.get("envFrom", ())} <= known
        named = [
            volume.get("secret", {}).get("secretName") or volume.get("configMap", {}).get("name") for volume in volumes.values()
        ]
        assert set(filter(None, named)) <= known


def test_roles_have_probes_and_time_to_drain(rendered: Rendered) -> None:
    for one in rendered.all("Deployment"):
        role = one["metadata"]["labels"]["app.kubernetes.io/component"]
        (container,) = containers(one["spec"]["template"])
        assert container["args"] == ["serve", "--role", role]
        ready = "/health/ready" if role == "controller" else "/health"
        for probe, path in (("startupProbe", "/health"), ("livenessProbe", "/health"), ("readinessProbe", ready)):
            assert container[probe]["httpGet"] == {"path": path, "port": "metrics"}
        settings = settings_of(rendered, container)
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert ports == {"http": settings.port, "metrics": settings.metrics_port}
        pause_s = 0 if role == "controller" else container["lifecycle"]["preStop"]["sleep"]["seconds"]
        assert one["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] >= settings.drain_grace + pause_s + 10


def test_the_role_is_that_of_the_file(rendered: Rendered, request: pytest.FixtureRequest) -> None:
    if "least" in request.node.name:
        assert not rendered.has("Role")
        assert not rendered.has("RoleBinding")
        return
    (role,), (binding,) = rendered.all("Role"), rendered.all("RoleBinding")
    (known,) = [one for one in yaml.safe_load_all(ROLE.read_text()) if one["kind"] == "Role"]
    assert role["rules"] == known["rules"]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    (subject,) = binding["subjects"]
    controller = next(one for one in rendered.all("Deployment") if one["metadata"]["name"].endswith("-controller"))
    account = controller["spec"]["template"]["spec"]["serviceAccountName"]
    assert (subject["name"], subject["namespace"]) == (account, NAMESPACE)
    assert rendered.one("ServiceAccount", account)
    where = settings_of(rendered, containers(controller["spec"]["template"])[0]).kubernetes_namespace
    assert {role["metadata"]["namespace"], binding["metadata"]["namespace"]} == {where}


def test_agents_of_workspaces_are_reached_from_the_serving_pods_only(rendered: Rendered) -> None:
    (peer,) = FROM
    needed = peer["podSelector"]["matchLabels"].items()
    reached_from = {name for name, pod in rendered.pods.items() if needed <= pod["metadata"]["labels"].items()}
    assert reached_from == {one["metadata"]["name"] for one in rendered.all("Deployment")}


# ── settings ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def decoded(secret: dict[str, Any]) -> dict[str, str]:
    # An upgrade does not remove keys of `stringData`.
    assert "stringData" not in secret
    return {name: base64.b64decode(value, validate=True).decode() for name, value in secret["data"].items()}


def settings_of(rendered: Rendered, container: dict[str, Any]) -> Settings:
    """As the process loads them."""
    secret: dict[str, str] = {}
    for one in container["envFrom"]:
        secret |= next(
            (decoded(each) for each in rendered.all("Secret") if each["metadata"]["name"] == one["secretRef"]["name"]),
            VARIABLES,
        )
    return load({**secret, **variables_of(container)})


def test_the_settings_of_every_process_load(rendered: Rendered) -> None:
    checked = 0
    for name, pod in rendered.pods.items():
        for container in containers(pod):
            if "envFrom" not in container:
                continue
            settings = settings_of(rendered, container)
            checked += 1
            assert settings.runtime == "kubernetes"
            assert settings.archives_at == "s3://bucket/homes"
            assert settings.secret_key_path == Path("/etc/torpor/key/torpor.key")
            assert (settings.api_url is not None) is name.endswith("-proxy")
            assert settings.coordinator_node_id is None
    assert checked == 5


def test_a_setting_that_torpor_does_not_know_is_refused_by_torpor(tmp_path: Path) -> None:
    rendered = Rendered(with_value("settings.standby_tll", 5), tmp_path)
    (container,) = containers(rendered.pods["torpor-migration"])
    with pytest.raises(Refused, match="TORPOR_STANDBY_TLL is not a setting; did you mean TORPOR_STANDBY_TTL"):
        settings_of(rendered, container)


def test_every_setting_can_be_set(tmp_path: Path) -> None:
    """By `settings`, or by the value that the refusal names."""
    given, elsewhere = dict.fromkeys(Settings.model_fields, "x"), set()
    while (done := render({**MINIMAL, "settings": given}, tmp_path)).returncode != 0:
        (refused,) = re.findall(r"settings\.(\w+) is decided by the chart; use instead: ", done.stderr)
        elsewhere.add(refused)
        del given[refused]
    (job,) = [one for one in yaml.safe_load_all(done.stdout) if one and one["kind"] == "Job"]
    variables = variables_of(job["spec"]["template"]["spec"]["containers"][0])
    assert {name for name in given if variables[f"{PREFIX}{name.upper()}"] != "x"} == set()
    assert SECRET - elsewhere == {"archive_url"}, "another secret would be in the specs of pods"
    assert len(elsewhere) < 20


def test_large_numbers_and_fractions_are_written_as_torpor_reads_them(everything: Rendered) -> None:
    settings = settings_of(everything, containers(everything.pods["tor-api"])[0])
    assert (settings.session_ttl, settings.drain_grace, settings.unconfined) == (2592000, 12.5, True)
    assert variables_of(containers(everything.pods["tor-api"])[0])["TORPOR_SESSION_TTL"] == "2592000"


# ── single values ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_ingress_has_both_hosts_with_tls(minimal: Rendered, everything: Rendered) -> None:
    (ingress,) = everything.all("Ingress")
    hosts = ["torpor.example.com", "*.workspaces.example.org"]
    assert [one["host"] for one in ingress["spec"]["rules"]] == hosts
    tls = [{"hosts": [hosts[0]], "secretName": "torpor-tls"}, {"hosts": [hosts[1]], "secretName": "wildcard"}]
    assert (ingress["spec"]["tls"], ingress["spec"]["ingressClassName"]) == (tls, "nginx")
    for rule in ingress["spec"]["rules"]:
        (path,) = rule["http"]["paths"]
        assert everything.one("Service", path["backend"]["service"]["name"])["spec"]["ports"][0]["name"] == "http"
    settings = settings_of(everything, containers(everything.pods["tor-proxy"])[0])
    assert (settings.base_url, settings.workspace_domain) == ("https://torpor.example.com:8443", "workspaces.example.org")
    (ingress,) = minimal.all("Ingress")
    assert [one["host"] for one in ingress["spec"]["rules"]] == ["torpor.example.com", "*.torpor.example.com"]
    assert settings_of(minimal, containers(minimal.pods["torpor-proxy"])[0]).base_url == "https://torpor.example.com"


def test_each_role_is_scaled_by_its_value(everything: Rendered) -> None:
    replicas = {one["metadata"]["name"]: one["spec"]["replicas"] for one in everything.all("Deployment")}
    assert replicas == {"tor-api": 3, "tor-proxy": 5, "tor-controller": 4}
    assert {one["spec"]["maxUnavailable"] for one in everything.all("PodDisruptionBudget")} == {"50%"}


def test_images(minimal: Rendered, everything: Rendered) -> None:
    used = {container["image"] for pod in everything.pods.values() for container in containers(pod)}
    assert used == {f"registry.example.com/torpor@sha256:{'a' * 64}"}
    controller = settings_of(everything, containers(everything.pods["tor-controller"])[0])
    assert controller.kubernetes_kit_image == "registry.example.com/torpor-kit:7"
    assert {container["image"] for pod in minimal.pods.values() for container in containers(pod)} == {f"torpor:{__version__}"}
    assert settings_of(minimal, containers(minimal.pods["torpor-controller"])[0]).kubernetes_kit_image == (
        f"torpor-kit:{__version__}"
    )


def test_what_the_cluster_needs_in_pods_reaches_the_controllers(minimal: Rendered, everything: Rendered) -> None:
    text = everything.one("ConfigMap", "tor-pods")["data"]["pods.yaml"]
    pods = parse_pod_file("pods.yaml", text)
    assert pods.workspaces.spec == {"nodeSelector": {"pool": "workspaces"}, "imagePullSecrets": [{"name": "registry"}]}
    assert pods.jobs.spec == {"priorityClassName": "low", "imagePullSecrets": [{"name": "jobs"}, {"name": "registry"}]}
    assert pods.templates["shell"].spec["imagePullSecrets"] == [{"name": "shells"}, {"name": "registry"}]
    assert pods.templates["jupyterlab"].spec == {**pods.workspaces.spec, "schedulerName": "gpu"}
    (container,) = containers(everything.pods["tor-controller"])
    assert {"name": "pods", "mountPath": "/etc/torpor/pods", "readOnly": True} in container["volumeMounts"]
    assert variables_of(container)["TORPOR_KUBERNETES_POD_FILE"] == "/etc/torpor/pods/pods.yaml"
    assert "TORPOR_KUBERNETES_POD_FILE" not in variables_of(containers(everything.pods["tor-api"])[0])
    assert "TORPOR_KUBERNETES_POD_FILE" not in variables_of(containers(minimal.pods["torpor-controller"])[0])
    assert everything.one("ConfigMap", "tor-templates")["data"] == {"shell.toml": 'title = "Shell"\n'}


def test_the_migration_runs_before_all_with_its_own_copy_of_the_secrets(everything: Rendered, minimal: Rendered) -> None:
    job, copied = everything.one("Job", "tor-migration"), everything.one("Secret", "tor-migration")
    assert job["metadata"]["annotations"]["helm.sh/hook"] == copied["metadata"]["annotations"]["helm.sh/hook"]
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    assert int(copied["metadata"]["annotations"]["helm.sh/hook-weight"]) < 0
    assert "hook-succeeded" in copied["metadata"]["annotations"]["helm.sh/hook-delete-policy"]
    assert decoded(copied) == decoded(everything.one("Secret", "tor-secrets")) == VARIABLES
    (container,) = containers(job["spec"]["template"])
    assert container["args"] == ["migrate", "--admin=eve", "--if-none"]
    # Such as a certificate of the database.
    assert {"name": "more", "mountPath": "/more"} in container["volumeMounts"]
    assert {"name": "more", "emptyDir": {}} in job["spec"]["template"]["spec"]["volumes"]
    assert container["envFrom"] == [{"secretRef": {"name": "tor-migration"}}]
    assert containers(minimal.pods["torpor-migration"])[0]["args"] == ["migrate"]
    assert containers(minimal.pods["torpor-migration"])[0]["envFrom"] == [{"secretRef": {"name": "torpor"}}]
    # Hooks run before service accounts exist.
    assert "serviceAccountName" not in job["spec"]["template"]["spec"]
    key = everything.one("Secret", "tor-installation-key")
    assert decoded(key) == {"torpor.key": KEY}
    assert key["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert not minimal.has("Secret")


def test_a_changed_value_of_a_secret_restarts_the_processes(tmp_path: Path) -> None:
    def template(values: dict[str, str]) -> Any:
        return Rendered({**EVERYTHING, "secrets": {"values": values}}, tmp_path).pods["tor-api"]

    assert template(VARIABLES) == template(dict(VARIABLES))
    assert template(VARIABLES) != template({**VARIABLES, "AWS_SECRET_ACCESS_KEY": "another"})


def test_only_proxies_reach_the_api(everything: Rendered, minimal: Rendered) -> None:
    metrics, requests = everything.one("NetworkPolicy", "tor-api")["spec"]["ingress"]
    assert (metrics["ports"], metrics["from"]) == ([{"port": "metrics"}], [{"podSelector": {}}])
    components = [one["podSelector"]["matchLabels"]["app.kubernetes.io/component"] for one in requests["from"]]
    assert (requests["ports"], components) == ([{"port": "http"}], ["proxy", "test"])
    assert len(everything.one("NetworkPolicy", "tor-controller")["spec"]["ingress"]) == 1
    assert minimal.one("NetworkPolicy", "torpor-proxy")["spec"]["ingress"][1] == {"ports": [{"port": "http"}]}


def test_helm_test_reaches_the_proxies_also_if_peers_are_named(everything: Rendered) -> None:
    requests = everything.one("NetworkPolicy", "tor-proxy")["spec"]["ingress"][1]
    assert requests["ports"] == [{"port": "http"}]
    assert EVERYTHING["networkPolicy"]["proxyFrom"][0] in requests["from"]
    admitted = [peer["podSelector"]["matchLabels"].items() for peer in requests["from"] if "podSelector" in peer]
    for name in ("tor-test-requests", "tor-test-doctor"):
        assert any(labels <= everything.pods[name]["metadata"]["labels"].items() for labels in admitted), name


def believed(rendered: Rendered, role: str, peer: str) -> bool:
    """Whether the processes of this role believe the X-Forwarded-For of this address."""
    (pod,) = [pod for name, pod in rendered.pods.items() if name.endswith(f"-{role}")]
    words = settings_of(rendered, containers(pod)[0]).trusted_proxies.split(",")
    return TrustedProxies([word for word in words if word]).believes(peer)


def test_the_proxies_believe_only_the_ingress_or_what_the_settings_name(tmp_path: Path) -> None:
    pod, named = "10.1.2.3", "203.0.113.7"
    for values, proxy in (
        (MINIMAL, {pod: True, named: False}),
        (with_value("settings.trusted_proxies", ""), {pod: False, named: False}),
        (with_value("settings.trusted_proxies", "203.0.113.0/24"), {pod: False, named: True}),
        (EVERYTHING, {pod: False, named: True}),
        (LEAST, {pod: False, named: False}),
    ):
        rendered = Rendered(values, tmp_path)
        assert {peer: believed(rendered, "proxy", peer) for peer in proxy} == proxy
        assert believed(rendered, "api", pod), "its clients are proxies"
        assert not believed(rendered, "controller", pod)


def test_the_service_monitor_selects_the_service_of_the_metrics(everything: Rendered, minimal: Rendered) -> None:
    (monitor,) = everything.all("ServiceMonitor")
    selector = monitor["spec"]["selector"]["matchLabels"].items()
    (service,) = [one for one in everything.all("Service") if selector <= one["metadata"]["labels"].items()]
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["port"] in [port["name"] for port in service["spec"]["ports"]]
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    assert not minimal.has("ServiceMonitor")


def test_the_values_of_the_how_to_use_its_secrets() -> None:
    commands = HOW_TO.read_text()
    for name in ("secrets", "installationKey"):
        assert f"kubectl create secret generic {documented()[name]['existingSecret']} --namespace torpor" in commands
    assert f"kubectl create secret tls {documented()['ingress']['tls']['secretName']} --namespace torpor" in commands
