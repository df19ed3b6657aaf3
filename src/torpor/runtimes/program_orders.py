"""Decide what the agent of a container is told: the command, its environment, and the home that it must find.

Pure.
"""

from collections.abc import Mapping

from torpor.inside.program import AgentOptions
from torpor.kit import layout
from torpor.ports import Container
from torpor.runtimes.home_record import HomeRecord, marker_facts
from torpor.runtimes.placeholders import Placeholders, uses_placeholder

INSIDE = str(layout.MOUNT / layout.INSIDE)
HOME = "/home/workspace"
"""The same as on the process runtime."""
USER = "workspace"
PORT_INSIDE = 7007
"""The program's port: no development server uses it by default."""
SOCKETS = "/run/program"
"""A small tmpfs for the socket that a program listens on."""
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def orders(
    container: Container, record: HomeRecord, image_environment: Mapping[str, str], *, marker_file: str, grace_s: float
) -> dict[str, object]:
    assert record.marker is not None
    return {
        "do": "orders",
        "options": agent_options(container, image_environment)._asdict(),
        "marker": marker_facts(record.marker, record.birth),
        "marker_file": marker_file,
        "grace_s": grace_s,
    }


def agent_options(container: Container, image_environment: Mapping[str, str]) -> AgentOptions:
    program = container.program
    known = Placeholders(
        python=str(layout.MOUNT / layout.PYTHON),
        inside=INSIDE,
        site=str(layout.MOUNT / layout.SITE),
        programs="",
        port=PORT_INSIDE,
        socket=f"{SOCKETS}/socket",
        home=HOME,
    )
    words = () if program.is_verbatim else (*program.command, *program.environment.values())
    given = {name: known.fill(value) for name, value in program.environment.items()} | dict(program.own_environment)
    path = image_environment.get("PATH") or DEFAULT_PATH
    environment = {
        "LANG": "C.UTF-8",
        "TERM": "xterm-256color",
        **image_environment,
        "PATH": f"{HOME}/.local/bin:{path}:{layout.MOUNT}/bin",
        "HOME": HOME,
        "USER": USER,
        "LOGNAME": USER,
        **given,
        "PORT": str(PORT_INSIDE),
    }
    return AgentOptions(
        port=PORT_INSIDE,
        socket=known.socket if uses_placeholder("socket", words) else "",
        home=HOME,
        command=program.command if program.is_verbatim else tuple(map(known.fill, program.command)),
        environment=environment,
        user=None,
        alone=True,
        own_network=True,
        limits={},
    )
