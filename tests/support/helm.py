"""Run helm on the chart of the product."""

import functools
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from tools.kubernetes import KUBERNETES

from tests.support.kubernetes_cluster import programs

CHART = Path(__file__).parents[2] / "deploy" / "helm" / "torpor"
RELEASE = "torpor"
NAMESPACE = "product"
TIMEOUT_S = 120.0


@functools.cache
def helm_program() -> str:
    """The test is skipped if it is not there."""
    return str(programs("helm") / "helm")


def run_helm(
    *words: str, enter: tuple[str, ...] = (), environment: Mapping[str, str] | None = None, timeout_s: float = TIMEOUT_S
) -> "subprocess.CompletedProcess[str]":
    """`enter`: the beginning of a command that enters the network of a cluster."""
    command = [*enter, helm_program(), *words]
    variables = {**os.environ, **(environment or {})}
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=timeout_s, check=False)


class Rendered:
    """The objects that the chart creates with these values."""

    def __init__(self, values: Mapping[str, Any], folder: Path) -> None:
        done = render(values, folder)
        assert done.returncode == 0, done.stderr
        self.objects: list[dict[str, Any]] = [one for one in yaml.safe_load_all(done.stdout) if one]

    def all(self, kind: str) -> list[dict[str, Any]]:
        return [one for one in self.objects if one["kind"] == kind]

    def one(self, kind: str, name: str) -> dict[str, Any]:
        (found,) = [one for one in self.all(kind) if one["metadata"]["name"] == name]
        return found

    def has(self, kind: str) -> bool:
        return bool(self.all(kind))

    @property
    def pods(self) -> dict[str, dict[str, Any]]:
        """Metadata and spec of every pod, by the name of its object."""
        found = {one["metadata"]["name"]: one for one in self.all("Pod")}
        return found | {
            one["metadata"]["name"]: one["spec"]["template"] for kind in ("Deployment", "Job") for one in self.all(kind)
        }


def render(values: Mapping[str, Any], folder: Path) -> "subprocess.CompletedProcess[str]":
    file = folder / "values.yaml"
    file.write_text(yaml.safe_dump(dict(values)))
    version = ("--kube-version", KUBERNETES)
    return run_helm("template", RELEASE, str(CHART), "--namespace", NAMESPACE, "--values", str(file), *version)
