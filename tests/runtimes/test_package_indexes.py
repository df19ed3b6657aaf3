"""Find the configured package indexes and proxies, and those that workspaces cannot reach."""

from pathlib import Path

import pytest

from tests.support.own_getent import own_getent
from torpor.domain.networks import BLOCKED
from torpor.runtimes.process.package_indexes import configured_hosts, index_files, unreachable_indexes


@pytest.mark.parametrize(
    ("variable", "value", "hosts"),
    [
        ("PIP_INDEX_URL", "https://ada:hunter2@pypi.example.com:8443/simple", {"pypi.example.com"}),
        ("PIP_EXTRA_INDEX_URL", "https://one.example.com/a https://two.example.com/b", {"one.example.com", "two.example.com"}),
        ("UV_INDEX", "inner=https://one.example.com/a https://two.example.com", {"one.example.com", "two.example.com"}),
        ("UV_DEFAULT_INDEX", "http://[fd12::9]/simple", {"fd12::9"}),
        ("UV_INDEX_URL", "/opt/wheels", set()),
        ("UV_INDEX_URL", "file:///opt/wheels", set()),
        ("UV_INDEX_URL", "http://[broken", set()),
        ("NPM_CONFIG_REGISTRY", "https://npm.example.com/all/", {"npm.example.com"}),
        ("https_proxy", "http://proxy.example.com:3128", {"proxy.example.com"}),
        ("ALL_PROXY", "10.1.2.3:3128", {"10.1.2.3"}),
        ("NO_PROXY", "http://other.example.com", set()),
    ],
)
def test_variables_name_hosts(variable: str, value: str, hosts: set[str]) -> None:
    assert configured_hosts({variable: value}, []) == dict.fromkeys(hosts, variable)


def test_pips_files_name_hosts(tmp_path: Path) -> None:
    path = tmp_path / ".config/pip/pip.conf"
    path.parent.mkdir(parents=True)
    path.write_text(
        "[global]\nindex-url = https://one.example.com/%s\n[install]\nextra-index-url =\n  https://two.example.com\n"
    )
    broken, binary = tmp_path / "broken", tmp_path / "binary"
    broken.write_text("index-url = x")
    binary.write_bytes(b"\xff\xfe")
    environ = {"HOME": str(tmp_path), "PIP_CONFIG_FILE": str(broken)}
    assert {path, broken} <= set(index_files(environ))
    found = configured_hosts({}, [path, broken, binary, tmp_path / "missing"])
    assert found == {"one.example.com": str(path), "two.example.com": str(path)}


def test_npms_file_names_registries(tmp_path: Path) -> None:
    path = tmp_path / ".npmrc"
    path.write_text(
        "# registry=https://no.example.com\nregistry = https://one.example.com/\n@own:registry=http://two.example.com\n"
    )
    assert path in index_files({"HOME": str(tmp_path)})
    assert configured_hosts({}, [path]) == {"one.example.com": str(path), "two.example.com": str(path)}


@pytest.mark.anyio
async def test_an_index_in_a_blocked_network_is_reported_with_address_and_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {"10.1.2.3": "10.1.2.3", "198.51.100.7": "198.51.100.7", "proxy.example.com": "fd12::9"}
    own_getent(tmp_path, monkeypatch, names)
    hosts = {"10.1.2.3": "PIP_INDEX_URL", "198.51.100.7": "UV_INDEX", "proxy.example.com": "HTTPS_PROXY"}
    found = await unreachable_indexes(hosts, blocked=BLOCKED, allowed=())
    assert [str(one) for one in found] == [
        "workspaces cannot reach the package index 10.1.2.3 of PIP_INDEX_URL, because 10.0.0.0/8 is blocked. "
        "An administrator can add 10.1.2.3 to the setting workspace_allowed_networks.",
        "workspaces cannot reach the proxy proxy.example.com (fd12::9) of HTTPS_PROXY, because fc00::/7 is blocked. "
        "An administrator can add fd12::9 to the setting workspace_allowed_networks.",
    ]
    assert await unreachable_indexes({"10.1.2.3": "PIP_INDEX_URL"}, blocked=BLOCKED, allowed=("10.1.0.0/16",)) == []


@pytest.mark.anyio
async def test_a_host_without_an_address_is_not_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = own_getent(tmp_path, monkeypatch, {})
    assert await unreachable_indexes({"missing.example.com": "PIP_INDEX_URL"}, blocked=("0.0.0.0/0", "::/0"), allowed=()) == []
    assert asked() == ["missing.example.com"]
