"""Test that a request reaches the API and its workspace, for each set of roles."""

import socket
from pathlib import Path
from typing import Any

import pytest

from tests.support.gate_stage import PORT, head
from torpor.assemble.proxy_wiring import ProxyWiring
from torpor.assemble.roles import EVERY_PART, ProcessRole
from torpor.domain.errors import Refused
from torpor.ports import Address
from torpor.proxy.connection_limits import descriptor_limit, total_connections
from torpor.proxy.gate import Forward, Reply, Verdict
from torpor.proxy.monitoring_gate import MonitoringGate
from torpor.settings import Settings

HERE = Address(unix_path="/here")


def doors(folder: Path, parts: frozenset[ProcessRole], **settings: Any) -> ProxyWiring:
    return ProxyWiring(Settings.model_validate({"data": folder, "port": PORT, **settings}), parts, HERE)


def judged(made: ProxyWiring, host: str = "localhost", target: str = "/") -> Verdict:
    verdict = made._gate.judge(head(host=f"{host}:{PORT}", target=target), "192.0.2.7")
    assert isinstance(verdict, Forward | Reply)
    return verdict


def address(verdict: Verdict) -> Address:
    assert isinstance(verdict, Forward)
    return verdict.address


def test_a_process_with_the_api_serves_the_platform_itself(tmp_path: Path) -> None:
    made = doors(tmp_path, EVERY_PART, api_url="http://10.0.0.5:9000")
    assert address(judged(made, target="/api/v1/me")) == HERE
    assert address(judged(made, host="127.0.0.1")) == HERE


def test_a_proxy_without_the_api_forwards_all_but_health_and_metrics(tmp_path: Path) -> None:
    made = doors(tmp_path, frozenset({ProcessRole.PROXY}), api_url="http://api.internal:9000")
    assert address(judged(made, target="/api/v1/me")) == Address(host="api.internal", port=9000)
    assert address(judged(made, target="/door?x=1")) == Address(host="api.internal", port=9000)
    for own in ("/health", "/health/ready", "/metrics", "/%6detrics"):
        assert address(judged(made, target=own)) == HERE
    assert address(judged(doors(tmp_path, frozenset({ProcessRole.PROXY})), target="/api/v1/me")) == HERE


def test_an_invalid_api_url_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="TORPOR_API_URL"):
        doors(tmp_path, frozenset({ProcessRole.PROXY}), api_url="https://api.internal")


def test_a_workspace_host_is_503_before_the_start_and_421_without_the_proxy_role(tmp_path: Path) -> None:
    opening, elsewhere = (
        judged(doors(tmp_path, parts), "ada.localhost") for parts in (EVERY_PART, frozenset({ProcessRole.API}))
    )
    assert isinstance(opening, Reply)
    assert isinstance(elsewhere, Reply)
    assert (opening.status, elsewhere.status) == (503, 421)


def test_a_port_of_its_own_answers_only_about_this_process_and_for_any_host(tmp_path: Path) -> None:
    made = doors(tmp_path, EVERY_PART, metrics_port=PORT + 1)
    assert made.monitoring is not None
    assert made.monitoring.port == PORT + 1
    gate = MonitoringGate(HERE)
    for own in ("/health", "/health/ready", "/metrics", "/metrics?x=1"):
        assert address(gate.judge(head(host=f"10.0.0.7:{PORT + 1}", target=own), "192.0.2.7")) == HERE
    for other in ("/", "/api/v1/me", "/door"):
        answer = gate.judge(head(host=f"localhost:{PORT + 1}", target=other), "192.0.2.7")
        assert isinstance(answer, Reply)
        assert answer.status == 404


@pytest.mark.anyio
async def test_a_port_in_use_is_reported_with_its_own_setting(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        made = doors(tmp_path, EVERY_PART, metrics_port=port, listen="127.0.0.1")
        assert made.monitoring is not None
        with pytest.raises(Refused, match=f"port {port} is in use on 127.0.0.1; choose another with the setting metrics_port"):
            await made.monitoring.start()


def test_monitoring_has_few_connections_of_the_total(tmp_path: Path) -> None:
    made, total = doors(tmp_path, EVERY_PART, metrics_port=PORT + 1), total_connections(descriptor_limit())
    assert made.monitoring is not None
    assert made.monitoring._limits.total == min(64, total // 8)
    assert made.front._limits.total == total - made.monitoring._limits.total
    assert doors(tmp_path, EVERY_PART).front._limits.total == total


def test_with_a_port_of_their_own_metrics_are_not_where_users_are(tmp_path: Path) -> None:
    made = doors(tmp_path, EVERY_PART, metrics_port=PORT + 1)
    for target in ("/metrics", "/metrics?x=1", "/metrics/", "/%6detrics", "/%6Detric%73?x=1", "//metrics", "/%2Fmetrics"):
        closed = judged(made, target=target)
        assert isinstance(closed, Reply), target
        assert closed.status == 404
    for target in ("/health", "/", "/api/v1/me?path=/metrics", "/%256detrics"):
        assert address(judged(made, target=target)) == HERE
    assert address(judged(doors(tmp_path, EVERY_PART), target="/metrics")) == HERE
    assert doors(tmp_path, EVERY_PART).monitoring is None
