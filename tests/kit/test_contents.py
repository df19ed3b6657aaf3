"""The kit contains what its programs import, and nothing of this machine that it must not carry away."""

import ssl
import subprocess
import sys
from pathlib import Path

import pytest

import torpor
from torpor.domain.errors import Hopeless
from torpor.kit import contents
from torpor.kit.contents import KitFile, certificates, imported, own_modules, package, private_paths, without_private_paths
from torpor.kit.manifest import Kit

ONE = "-----BEGIN CERTIFICATE-----\nMIIB\nAAAA\n-----END CERTIFICATE-----"
OTHER = "-----BEGIN CERTIFICATE-----\nMIIC\n-----END CERTIFICATE-----"
KEY = "-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----"


def test_torpors_modules_are_those_that_the_agent_and_the_job_import() -> None:
    names = {file.target.removeprefix("site/torpor/") for file in own_modules() if file.target.endswith(".py")}
    assert {"__init__.py", "inside/start.py", "inside/terminal.py", "archives/job.py", "domain/errors.py"} <= names
    assert {name.partition("/")[0] for name in names} == {"__init__.py", "inside", "archives", "atomic_file.py", "domain"}
    # They would bring structlog and prometheus_client with them.
    assert not names & {"archives/archives.py", "loops.py", "metrics.py", "ports.py"}


def test_imports_are_followed_through_packages_and_functions(tmp_path: Path) -> None:
    files = {
        "__init__.py": "",
        "a/__init__.py": "from torpor.b import value",
        "a/first.py": "def late():\n    from torpor.a import second\n    import json\n    import other.torpor",
        "a/second.py": "import torpor.c",
        "a/unused.py": "",
        "b.py": "value = 1",
        "c/__init__.py": "",
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    found = imported(tmp_path, [tmp_path / "a" / "first.py"])
    assert {str(path.relative_to(tmp_path)) for path in found} == files.keys() - {"a/unused.py"}


def test_the_terminals_assets_are_in_the_kit(kit: Kit) -> None:
    inside = Path(torpor.__file__).parent / "inside"
    for path in (inside / "assets").rglob("*"):
        if path.is_file():
            assert (kit.path / "site/torpor/inside" / path.relative_to(inside)).read_bytes() == path.read_bytes()


def test_only_certificates_are_copied(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text(f"# comment\n{ONE}\n{KEY}\nmore\n{OTHER}\n")
    assert certificates({"SSL_CERT_FILE": str(file)}).decode() == f"{ONE}\n{OTHER}\n"


def test_a_file_without_certificates_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "key.pem"
    file.write_text(KEY)
    for name in (file, tmp_path / "absent"):
        with pytest.raises(Hopeless, match=f"SSL_CERT_FILE names '{name}', which contains no certificate"):
            certificates({"SSL_CERT_FILE": str(name)})


def test_a_machine_without_certificates_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "CERTIFICATE_FILES", ("/absent",))
    nothing = ssl.get_default_verify_paths()._replace(cafile="/absent")
    monkeypatch.setattr(ssl, "get_default_verify_paths", lambda: nothing)
    with pytest.raises(Hopeless, match="install the package ca-certificates"):
        certificates({})


def test_a_package_that_is_missing_is_named() -> None:
    for name in ("not_installed", "not_installed.at_all"):
        with pytest.raises(Hopeless, match=f"the Python package {name} is not installed"):
            list(package(name))


def test_a_changed_source_has_another_state(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text("a = 1")
    before = KitFile("a.py", file).state
    assert KitFile("a.py", file).state == before
    file.write_text("a = 12")
    assert KitFile("a.py", file).state != before


def test_private_paths_become_slashes_and_nothing_moves() -> None:
    """A linker keeps `3.12.1` only once if it is also the end of a path."""
    paths = [b"/home/ann/.pyenv/versions/3.12.1/lib", b"/home/ann/.pyenv/versions/3.12.1", b"/opt"]
    content = b"x\0/home/ann/.pyenv/versions/3.12.1\0/home/ann/.pyenv/versions/3.12.1/lib:/opt/a\0y"
    changed = without_private_paths(content, paths)
    assert changed == b"x\0" + b"/" * 26 + b"3.12.1\0" + b"/" * 33 + b"lib:/opt/a\0y"
    assert len(changed) == len(content)


def test_private_paths_are_those_of_this_python() -> None:
    found = private_paths()
    assert sys.prefix.encode() in found or sys.prefix in contents.SYSTEM_PREFIXES
    assert not set(found) & {b"/", b"/usr", b"/usr/local", b"/usr/lib"}
    assert [len(path) for path in found] == sorted(map(len, found), reverse=True)


def test_the_configuration_of_the_interpreter_is_kept_without_paths(kit: Kit) -> None:
    from torpor.kit.layout import python_argv_anywhere

    program = "import sysconfig, zoneinfo; print(sysconfig.get_config_var('SOABI'), *zoneinfo.TZPATH)"
    argv = [*python_argv_anywhere(kit.path, kit.manifest.loader), "-c", program]
    said = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=True, env={}).stdout.split()
    here = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, timeout=30, check=True, env={})
    assert said == here.stdout.split()
