"""What an administrator adds to pods."""

import pytest

from torpor.domain.errors import Refused
from torpor.runtimes.kubernetes.options import PodOptions
from torpor.runtimes.kubernetes.pod_file import PodFile, parse_pod_file

TEXT = """
workspaces:
  nodeSelector: {disk: ssd}
  requests: {memory: 1Gi}
  labels: {team: a}
templates:
  jupyterlab:
    tolerations: [{key: gpu, operator: Exists}]
    imagePullPolicy: Always
jobs:
  priorityClassName: low
"""


def test_a_template_adds_to_what_all_workspaces_have() -> None:
    found = parse_pod_file("file", TEXT)
    assert found.workspaces == PodOptions(
        labels={"team": "a"}, spec={"nodeSelector": {"disk": "ssd"}}, requests={"memory": "1Gi"}
    )
    template = found.templates["jupyterlab"]
    assert template.spec == {"nodeSelector": {"disk": "ssd"}, "tolerations": [{"key": "gpu", "operator": "Exists"}]}
    assert (template.image_pull_policy, template.labels) == ("Always", {"team": "a"})
    assert found.jobs.spec == {"priorityClassName": "low"}


def test_an_empty_file_adds_nothing() -> None:
    assert parse_pod_file("file", "") == PodFile()


WRONG = {
    "not YAML": ("a: [", "YAML"),
    "a list": ("[a]", "file must be a map with the parts workspaces, templates, jobs, network, not ['a']"),
    "a text": ("text", "not 'text'"),
    "a long text": ("x" * 1000, "xxx..."),
    "a part that is a list": ("workspaces: [a]", "workspaces: must be a map, not ['a']"),
    "a part without value": ("jobs:", "jobs: must be a map, not None"),
    "a template that is a text": ("templates: {a: b}", "templates.a: must be a map, not 'b'"),
    "a network that is a number": ("network: 5", "network: must be a map, not 5"),
    "a peer that is a text": ("network: {dns: [a]}", "network.dns.0: must be a map, not 'a'"),
    "unknown part": ("pods: {}", "pods"),
    "unknown field": ("workspaces: {hostNetwork: true}", "hostNetwork"),
    "wrong type": ("workspaces: {tolerations: x}", "tolerations"),
    "wrong in a template": ("templates: {a: {privileged: true}}", "privileged"),
    "Torpor's own label": ("workspaces: {labels: {torpor.kind: job}}", "torpor.kind"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_mistake_is_refused_with_its_place(name: str) -> None:
    text, words = WRONG[name]
    with pytest.raises(Refused) as refusal:
        parse_pod_file("file", text)
    assert refusal.value.code == "bad_setting"
    assert words in refusal.value.message
    assert "PodFile" not in refusal.value.message
    assert "_Network" not in refusal.value.message


def test_the_peers_of_network_policies_can_be_chosen() -> None:
    text = "network: {from: [{ipBlock: {cidr: 10.0.0.0/24}}], dns: [{ipBlock: {cidr: 10.96.0.10/32}}]}"
    found = parse_pod_file("file", text)
    assert found.reached_from == [{"ipBlock": {"cidr": "10.0.0.0/24"}}]
    assert found.name_service == [{"ipBlock": {"cidr": "10.96.0.10/32"}}]
    with pytest.raises(Refused):
        parse_pod_file("file", "network: {from: []}")
