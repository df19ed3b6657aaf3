"""Build the programs of a Kubernetes cluster from Go modules, for tests.

    .venv/bin/python -m tools.kubernetes           build what is missing (`make kubernetes`)
    .venv/bin/python -m tools.kubernetes --check   only say what is missing; exit code 1 if there is something

The programs are in the user's cache, in torpor/kubernetes/VERSION, and stay there: later runs and other clones find them. A run
that was interrupted continues, because Go keeps every compiled package.

No registry serves these programs ready to run. Kubernetes is published as a Go module that refers to its own parts by relative
paths. So each program is built in a module of one file that requires the published module and replaces those parts by their
published versions. It names no registry: Go uses the module proxy that this machine is configured for.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torpor import atomic_file
from torpor.file_lock import PidLock

GO = (1, 26)
"""The oldest Go that compiles all modules below."""
GO_FOLDERS = ("/usr/local/go/bin", "/usr/lib/go/bin")
"""Where Go is if it is not on the path."""
KUBERNETES = "v1.35.4"
"""The last minor version that runs with containerd 1.x; later ones need containerd 2."""
REPORT_S = 20.0


@dataclass(frozen=True)
class Module:
    path: str
    version: str
    programs: Mapping[str, str]
    """Package below the module, by program."""
    minutes: float
    """On two cores that others use, too, with an empty cache of Go."""
    linked: Mapping[str, str] | None = None
    """Values of variables that the linker sets."""


def _version_variables(version: str) -> dict[str, str]:
    _, minor, _ = version.split(".")
    values = {"gitVersion": version, "gitMajor": "1", "gitMinor": minor, "gitTreeState": "clean"}
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    return {f"{package}.{name}": value for package in packages for name, value in values.items()}


COMPONENTS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl", "kube-proxy")
MODULES = (
    Module("go.etcd.io/etcd/server/v3", "v3.6.16", {"etcd": ""}, 5),
    Module("k8s.io/kubernetes", KUBERNETES, {name: f"cmd/{name}" for name in COMPONENTS}, 30, _version_variables(KUBERNETES)),
    Module("sigs.k8s.io/kube-network-policies", "v1.1.0", {"kube-network-policies": "cmd/kube-network-policies/standard"}, 20),
    Module("helm.sh/helm/v3", "v3.22.0", {"helm": "cmd/helm"}, 25),
    Module("sigs.k8s.io/kwok", "v0.8.0", {"kwok": "cmd/kwok"}, 20),
)
DISK_GB = 7


class Stopped(Exception):
    """The build cannot go on; the message says what failed and what to do."""


def say(line: str) -> None:
    print(f"kubernetes: {line}", flush=True)


# ── the cache ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Where the programs are, whether built or not."""
    cache = Path(environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME", "/root")) / ".cache")
    return cache / "torpor" / "kubernetes" / KUBERNETES


def missing_programs(folder: Path) -> list[str]:
    """The programs that are not there, or there in another version."""
    versions = _versions(folder)
    return [
        program
        for module in MODULES
        for program in module.programs
        if versions.get(program) != module.version or not os.access(folder / program, os.X_OK)
    ]


def _versions(folder: Path) -> dict[str, str]:
    try:
        versions = json.loads((folder / "versions.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return versions if isinstance(versions, dict) else {}


def _keep(built: Path, folder: Path, program: str, version: str) -> None:
    """Replace a program as a whole; tests may be running the old one."""
    built.replace(folder / program)
    versions = {**_versions(folder), program: version}
    atomic_file.write(folder / "versions.json", json.dumps(versions, indent=2).encode() + b"\n", mode=0o644)


# ── Go ────────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def find_go(environ: Mapping[str, str]) -> str:
    go = shutil.which("go", path=os.pathsep.join([environ.get("PATH", ""), *GO_FOLDERS]))
    needed = f"Go {GO[0]}.{GO[1]} or newer"
    if go is None:
        raise Stopped(f"the programs are built with {needed}, and there is no `go` on the path. Install it, and try again.")
    said = subprocess.run([go, "version"], capture_output=True, text=True, check=False).stdout
    version = re.search(r"go(\d+)\.(\d+)", said)
    if not version or (int(version[1]), int(version[2])) < GO:
        raise Stopped(
            f"the programs are built with {needed}, and {go} says {said.strip() or 'nothing'!r}. Install a newer one."
        )
    return go


def _run(*command: str, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    if done.returncode != 0:
        raise Stopped(_failure(command, done.returncode, done.stderr))
    return done.stdout


def _failure(command: tuple[str, ...], code: int, output: str) -> str:
    tail = "\n".join(f"    {line}" for line in output.strip().splitlines()[-15:])
    return f"this failed with exit code {code}; run it again to continue:\n    {' '.join(command)}\n{tail}"


def write_wrapper(go: str, module: Module, folder: Path) -> None:
    """A module that requires this one, and replaces the parts to which it refers by relative paths."""
    facts = json.loads(_run(go, "mod", "download", "-json", f"{module.path}@{module.version}", cwd=folder))
    described = Path(facts["GoMod"]).read_text(encoding="utf-8")
    language = re.search(r"(?m)^go (\S+)", described)
    parts = re.findall(r"(?m)^\s*(\S+) => \./staging/", described)
    # v1.N.P of Kubernetes has its parts published as v0.N.P.
    of_parts = f"v0.{module.version.split('.', 1)[1]}"
    lines = ["module torpor.test/programs", f"go {language[1] if language else '1.21'}"]
    lines += [f"require {module.path} {module.version}"]
    lines += [f"replace {part} => {part} {of_parts}" for part in parts]
    (folder / "go.mod").write_text("\n".join(lines) + "\n", encoding="utf-8")
    # The hashes that the authors of the module pinned; Go asks its checksum database for the others.
    if (sums := Path(facts["Dir"], "go.sum")).exists():
        (folder / "go.sum").write_bytes(sums.read_bytes())


def compile_program(go: str, module: Module, program: str, wrapper: Path) -> Path:
    built = wrapper / program
    linked = [f"-X {name}={value}" for name, value in (module.linked or {}).items()]
    package = "/".join(filter(None, (module.path, module.programs[program])))
    command: tuple[str, ...] = ("nice", "-n", "19", go, "build", "-mod=mod", "-buildvcs=false", "-trimpath", "-v")
    command += ("-ldflags", " ".join(["-s", "-w", *linked]), "-o", str(built), package)
    environment = {**os.environ, "CGO_ENABLED": "0", "GOWORK": "off"}
    began = shown = time.monotonic()
    lines: list[str] = []
    with subprocess.Popen(
        command, cwd=wrapper, env=environment, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as go_build:
        assert go_build.stderr is not None
        for line in go_build.stderr:
            lines.append(line)
            if time.monotonic() - shown > REPORT_S:
                shown = time.monotonic()
                say(f"  {program}, {shown - began:.0f} s: {len(lines)} packages; {line.strip()}")
    if go_build.returncode != 0:
        raise Stopped(_failure(command, go_build.returncode, "".join(lines)))
    return built


# ── the command ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def build(folder: Path, wanted: list[str]) -> None:
    go = find_go(os.environ)
    folder.mkdir(parents=True, exist_ok=True)
    lock = PidLock(folder / "build.pid")
    try:
        if not lock.take():
            raise Stopped(f"another build is running (pid {lock.holder}); wait for it, and run this again")
        for module in MODULES:
            if programs := [program for program in module.programs if program in wanted]:
                build_module(go, module, programs, folder)
    finally:
        lock.close()


def build_module(go: str, module: Module, programs: list[str], folder: Path) -> None:
    # In the cache, so that a finished program only has to be renamed.
    with tempfile.TemporaryDirectory(prefix=".build-", dir=folder) as wrapper:
        write_wrapper(go, module, Path(wrapper))
        for program in programs:
            began = time.monotonic()
            say(f"building {program} {module.version}")
            built = compile_program(go, module, program, Path(wrapper))
            size_mb = built.stat().st_size >> 20
            _keep(built, folder, program, module.version)
            say(f"  {program}: built in {time.monotonic() - began:.0f} s, {size_mb} MB")


def announce(folder: Path, wanted: list[str]) -> None:
    for module in MODULES:
        if programs := [program for program in module.programs if program in wanted]:
            minutes = f"up to {module.minutes:g} min on two busy cores"
            say(f"to build from {module.path} {module.version}, {minutes}: {', '.join(programs)}")
    say(f"the programs go to {folder}; Go's own caches take about {DISK_GB} GB. Interrupt at will: the next run continues.")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="tools.kubernetes", description="Build the programs of a Kubernetes cluster for tests."
    )
    parser.add_argument("--check", action="store_true", help="only say what is missing")
    options = parser.parse_args()
    folder = cache_folder(os.environ)
    wanted = missing_programs(folder)
    if not wanted:
        say(f"everything is built, in {folder}")
        return 0
    if options.check:
        say(f"not built, or in another version: {', '.join(wanted)}; `make kubernetes` builds them")
        return 1
    announce(folder, wanted)
    began = time.monotonic()
    try:
        build(folder, wanted)
    except Stopped as error:
        say(f"FAILED: {error}")
        return 1
    say(f"built {len(wanted)} programs in {(time.monotonic() - began) / 60:.1f} min; `make e2e-kubernetes` uses them")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
