"""Test the precedence of settings, and that a wrong value is refused with the allowed ones."""

import re
from pathlib import Path
from typing import Any

import pytest

from torpor.domain.errors import Refused
from torpor.settings import OTHER_VARIABLES, PREFIX, SECRET, Settings, find_toml, load

HOME = {"HOME": "/home/ada"}
_READ = re.compile(r"""environ(?:ment)?(?:\.get\(|\[)"(TORPOR_[A-Z_]+)""")


def test_without_settings_the_defaults_apply() -> None:
    settings = load(HOME)
    assert settings.data == Path("/home/ada/.local/share/torpor")
    assert settings.port == 8080
    assert settings.archives_at == "file:///home/ada/.local/share/torpor/archives"
    assert settings.tuning.max_retries == 3
    assert settings.tuning.retry_base_s == 30


def test_the_command_line_overrides_the_environment_and_that_the_file() -> None:
    toml = (Path("torpor.toml"), "port = 1\nmax_running_per_user = 3\nlog_format = 'json'")
    settings = load({**HOME, "TORPOR_PORT": "2", "TORPOR_MAX_RUNNING_PER_USER": "4"}, toml=toml, overrides={"port": 5})
    assert (settings.port, settings.max_running_per_user, settings.log_format) == (5, 4, "json")


@pytest.mark.parametrize(
    "said",
    [
        {"environ": {**HOME, "TORPOR_UNCONFINED": "true"}},
        {"environ": {**HOME, "TORPOR_UNCONFINED": "yes"}},
        {"environ": HOME, "toml": (Path("torpor.toml"), "unconfined = true")},
        {"environ": HOME, "overrides": {"unconfined": True}},
    ],
)
def test_missing_confinement_is_accepted_only_explicitly(said: dict[str, Any]) -> None:
    assert not load(HOME).unconfined
    assert load(**said).unconfined


def test_an_empty_value_means_the_default() -> None:
    assert load({**HOME, "TORPOR_PORT": ""}, overrides={"port": None}).port == 8080


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({"TORPOR_PORT": "99999"}, ("TORPOR_PORT", "99999", "65535")),
        ({"TORPOR_PORT": "eighty"}, ("TORPOR_PORT", "eighty", "integer")),
        ({"TORPOR_METRICS_PORT": "8080"}, ("port and metrics_port are both 8080; choose another metrics_port",)),
        ({"TORPOR_RUNTIME": "vmware"}, ("TORPOR_RUNTIME", "vmware", "process")),
        ({"TORPOR_RECONCILER_INTERVAL": "0"}, ("TORPOR_RECONCILER_INTERVAL", "greater than 0")),
    ],
)
def test_a_wrong_value_is_refused_with_its_name_and_what_is_allowed(environ: dict[str, str], says: tuple[str, ...]) -> None:
    with pytest.raises(Refused) as refused:
        load({**HOME, **environ})
    assert refused.value.code == "bad_setting"
    assert all(word in refused.value.message for word in says)


def test_private_networks_are_blocked_by_default() -> None:
    settings = load(HOME)
    for network in (
        "10.0.0.0/8",
        "172.16.0.0/12",
        "192.168.0.0/16",
        "100.64.0.0/10",
        "169.254.0.0/16",
        "fe80::/10",
        "fc00::/7",
    ):
        assert network in settings.blocked_networks
    assert settings.allowed_networks == ()
    said = {
        "TORPOR_WORKSPACE_BLOCKED_NETWORKS": "10.0.0.0/8,fc00::/7",
        "TORPOR_WORKSPACE_ALLOWED_NETWORKS": " 10.1.2.3 , fd12::/64,",
    }
    settings = load({**HOME, **said})
    assert settings.blocked_networks == ("10.0.0.0/8", "fc00::/7")
    assert settings.allowed_networks == ("10.1.2.3/32", "fd12::/64")
    nothing_blocked = load(HOME, toml=(Path("torpor.toml"), "workspace_blocked_networks = ''"))
    assert nothing_blocked.blocked_networks == ()


def test_the_runtime_and_the_allow_list_decide_which_images_run() -> None:
    assert not load(HOME).image_policy.runs_images
    assert not load({**HOME, "TORPOR_RUNTIME": "process"}).image_policy.runs_images
    said = {"TORPOR_RUNTIME": "fake", "TORPOR_IMAGE_ALLOWLIST": " docker.io/library/*,r.example/a:1 ,"}
    policy = load({**HOME, **said}).image_policy
    assert (policy.runs_images, policy.allowlist) == (True, ("docker.io/library/*", "r.example/a:1"))
    with pytest.raises(Refused, match=r"'python' matches no image.*write 'docker\.io/library/python:latest'"):
        load({**HOME, "TORPOR_IMAGE_ALLOWLIST": "python"})
    assert load({**HOME, "TORPOR_REGISTRY_CREDENTIALS": "~/auth.json"}).registry_credentials == Path("~/auth.json").expanduser()


@pytest.mark.parametrize("name", ["TORPOR_WORKSPACE_BLOCKED_NETWORKS", "TORPOR_WORKSPACE_ALLOWED_NETWORKS"])
@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("10.0.0.0/33", ("'10.0.0.0/33' is not a network", "for example 10.1.2.3, 10.1.0.0/16")),
        ("10.1.2.3 10.1.2.4", ("'10.1.2.3 10.1.2.4' is not a network", "commas")),
        ("pypi.example.com", ("'pypi.example.com' is not a network",)),
        ("10.1.2.3:443", ("'10.1.2.3:443' is not a network",)),
        ("192.0.2.0/24, 10.1.2.3/16", ("'10.1.2.3/16' is an address in 10.1.0.0/16", "write 10.1.2.3 for the address")),
        ("::ffff:10.0.0.0/104", ("write them as IPv4",)),
        ("fe80::1%eth0", ("names an interface",)),
    ],
)
def test_an_invalid_network_is_refused(name: str, value: str, says: tuple[str, ...]) -> None:
    with pytest.raises(Refused) as refused:
        load({**HOME, name: value})
    assert refused.value.code == "bad_setting"
    assert all(word in refused.value.message for word in (name, value, *says))


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("TORPOR_PROT", "TORPOR_PORT"),
        ("TORPOR_DATABSE_URL", "TORPOR_DATABASE_URL"),
        ("TORPOR_STANDBYTTL", "TORPOR_STANDBY_TTL"),
        ("TORPOR_TOKN", "TORPOR_TOKEN"),
    ],
)
def test_a_misspelt_variable_is_refused_with_the_nearest_name(name: str, near: str) -> None:
    with pytest.raises(Refused) as refused:
        load({**HOME, name: "hunter2"})
    assert refused.value.code == "bad_setting"
    assert refused.value.message == f"the environment's {name} is not a setting; did you mean {near}?"


def test_every_misspelt_variable_is_named_also_without_a_near_name() -> None:
    with pytest.raises(Refused) as refused:
        load({**HOME, "TORPOR_XYZZYPLUGH": "1", "TORPOR_PROT": "1"})
    assert refused.value.message.splitlines() == [
        "the environment's TORPOR_PROT is not a setting; did you mean TORPOR_PORT?",
        "the environment's TORPOR_XYZZYPLUGH is not a setting",
    ]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, "1") for name in OTHER_VARIABLES),
        ("TORPOR_PROT", ""),
        ("TORPOR_TEST_MARK", "1"),
        ("TORPOR_SORT_ANYTHING", "1"),
        ("TORPOR_API_SERVICE_HOST", "10.0.0.1"),
        ("TORPOR_API_SERVICE_PORT_HTTP", "80"),
        ("TORPOR_API_PORT", "tcp://10.0.0.1:80"),
        ("TORPOR_API_PORT_80_TCP_ADDR", "10.0.0.1"),
        ("NO_TORPOR_PROT", "1"),
    ],
)
def test_a_foreign_variable_is_ignored(name: str, value: str) -> None:
    assert load({**HOME, name: value}).port == 8080


def test_every_variable_that_the_repository_reads_is_known() -> None:
    """In the source, the tools, the tests and the Makefile, except made-up ones in tests."""
    root = Path(__file__).parents[1]
    files = [path for folder in ("src", "tools", "tests", "bench") for path in (root / folder).rglob("*.py")]
    read = {name for path in [root / "Makefile", *files] for name in _READ.findall(path.read_text(encoding="utf-8"))}
    assert "TORPOR_SETUP_PACKAGES" in read
    load({**HOME, **dict.fromkeys(read - {PREFIX + name.upper() for name in Settings.model_fields}, "1")})


@pytest.mark.parametrize(
    ("text", "says"),
    [("port = [", "not valid TOML"), ("prot = 1", "prot"), ("port = 'x'", "port in torpor.toml")],
)
def test_a_broken_file_is_refused(text: str, says: str) -> None:
    with pytest.raises(Refused, match=says):
        load(HOME, toml=(Path("torpor.toml"), text))


def test_a_secret_is_never_printed() -> None:
    settings = load({**HOME, "TORPOR_DATABASE_URL": "postgresql://ada:hunter2@db/torpor"})
    assert "hunter2" not in repr(settings)
    assert "hunter2" not in str(settings.model_dump())
    assert {"database_url", "redis_url", "archive_url", "oidc_client_secret"} == SECRET


def test_the_settings_file_is_the_given_one_or_that_in_the_folder(tmp_path: Path) -> None:
    assert find_toml({}, tmp_path) is None
    (tmp_path / "torpor.toml").write_text("port = 1")
    assert find_toml({}, tmp_path) == (tmp_path / "torpor.toml", "port = 1")
    with pytest.raises(Refused, match="which does not exist"):
        find_toml({f"{PREFIX}CONFIG": str(tmp_path / "missing.toml")}, tmp_path)
