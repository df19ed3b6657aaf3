"""Read what a cluster's administrator adds to pods: a YAML file with the names and values of Kubernetes.

workspaces:            # all workspaces
  nodeSelector: {disk: ssd}
  requests: {memory: 1Gi}
templates:             # the workspaces of a template, in addition
  jupyterlab:
    tolerations: [{key: gpu, operator: Exists}]
jobs:                  # archive and restore
  priorityClassName: low
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from torpor.domain.errors import Refused
from torpor.runtimes.kubernetes.network_policies import DNS, FROM
from torpor.runtimes.kubernetes.options import PodOptions

RESERVED = "torpor."
NO_MAP = ("dict_type", "model_type")
"""What pydantic calls a value of another type where a map is needed."""
SHOWN = 60
"""Characters of a wrong value."""


class AddedFields(BaseModel):
    """What can be added to pods."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    requests: dict[str, str] = Field(default_factory=dict)
    imagePullPolicy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"  # noqa: N815 - the name of Kubernetes
    nodeSelector: dict[str, str] | None = None  # noqa: N815
    tolerations: list[dict[str, Any]] | None = None
    affinity: dict[str, Any] | None = None
    topologySpreadConstraints: list[dict[str, Any]] | None = None  # noqa: N815
    imagePullSecrets: list[dict[str, str]] | None = None  # noqa: N815
    priorityClassName: str | None = None  # noqa: N815
    runtimeClassName: str | None = None  # noqa: N815
    schedulerName: str | None = None  # noqa: N815
    serviceAccountName: str | None = None  # noqa: N815
    dnsPolicy: str | None = None  # noqa: N815
    dnsConfig: dict[str, Any] | None = None  # noqa: N815

    def options(self) -> PodOptions:
        own = {"labels", "annotations", "requests", "imagePullPolicy"}
        return PodOptions(
            labels=_without_reserved(self.labels),
            annotations=_without_reserved(self.annotations),
            spec=self.model_dump(exclude=own, exclude_none=True),
            requests=self.requests,
            image_pull_policy=self.imagePullPolicy,
        )


class _Network(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    reached_from: list[dict[str, Any]] | None = Field(None, alias="from", min_length=1)
    dns: list[dict[str, Any]] | None = Field(None, min_length=1)


class _PodFile(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    workspaces: dict[str, Any] = Field(default_factory=dict)
    templates: dict[str, dict[str, Any]] = Field(default_factory=dict)
    jobs: dict[str, Any] = Field(default_factory=dict)
    network: _Network = Field(default_factory=lambda: _Network.model_validate({}))


@dataclass(frozen=True, slots=True)
class PodFile:
    workspaces: PodOptions = field(default_factory=PodOptions)
    templates: Mapping[str, PodOptions] = field(default_factory=dict)
    jobs: PodOptions = field(default_factory=PodOptions)
    reached_from: Sequence[Mapping[str, Any]] = FROM
    """The peers that reach agents."""
    name_service: Sequence[Mapping[str, Any]] = DNS


def parse_pod_file(name: str, text: str) -> PodFile:
    """Refused `bad_setting`, with the place of the mistake."""
    try:
        read = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise Refused("bad_setting", f"{name} is not valid YAML: {error}") from error
    if read is not None and not isinstance(read, dict):
        parts = ", ".join(_PodFile.model_fields)
        raise Refused("bad_setting", f"{name} must be a map with the parts {parts}, not {_shown(read)}")
    try:
        found = _PodFile.model_validate(read or {})
        return PodFile(
            AddedFields.model_validate(found.workspaces).options(),
            {
                template: AddedFields.model_validate({**found.workspaces, **added}).options()
                for template, added in found.templates.items()
            },
            AddedFields.model_validate(found.jobs).options(),
            found.network.reached_from or FROM,
            found.network.dns or DNS,
        )
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, one['loc']))}: {_fault(one)}" for one in error.errors())
        allowed = ", ".join(AddedFields.model_fields)
        raise Refused("bad_setting", f"{name}: {faults}. Allowed in workspaces, jobs and each template: {allowed}") from error


def _fault(one: ErrorDetails) -> str:
    """The words of pydantic, except where they name a class."""
    return f"must be a map, not {_shown(one['input'])}" if one["type"] in NO_MAP else one["msg"]


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def _without_reserved(given: Mapping[str, str]) -> dict[str, str]:
    for name in given:
        if name.startswith(RESERVED):
            raise Refused(
                "bad_setting", f"the label or annotation {name!r} is reserved: names that begin with {RESERVED!r} are"
            )
    return dict(given)
