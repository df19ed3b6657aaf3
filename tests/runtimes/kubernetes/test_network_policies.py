"""What the cluster permits to workspaces and jobs."""

from torpor.domain.networks import BLOCKED
from torpor.runtimes.kubernetes.network_policies import DNS, FROM, NetworkRules, network_policies

RULES = NetworkRules(BLOCKED, ("10.1.2.3/32", "fd12::/64"))


def test_a_workspace_reaches_the_internet_and_names_and_no_private_network() -> None:
    workspaces, _ = network_policies("t", RULES)
    networks, names = workspaces["spec"]["egress"]
    blocks = {peer["ipBlock"]["cidr"]: set(peer["ipBlock"].get("except", ())) for peer in networks["to"]}
    assert {"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16"} <= blocks["0.0.0.0/0"]
    assert "fc00::/7" in blocks["::/0"]
    assert blocks.keys() == {"0.0.0.0/0", "::/0", "10.1.2.3/32", "fd12::/64"}
    assert names["to"] == list(DNS)
    assert {port["port"] for port in names["ports"]} == {53}


def test_agents_are_reached_only_from_torpor_and_jobs_reach_everything() -> None:
    for policy in network_policies("t", RULES):
        assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
        (rule,) = policy["spec"]["ingress"]
        assert rule == {"from": list(FROM), "ports": [{"protocol": "TCP", "port": 7008}]}
    _, jobs = network_policies("t", RULES)
    assert jobs["spec"]["egress"] == [{}]
    assert jobs["spec"]["podSelector"]["matchLabels"] == {"torpor.installation": "t", "torpor.kind": "job"}
