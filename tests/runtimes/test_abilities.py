"""Which protections count as missing?"""

import pytest

from torpor.runtimes.process.abilities import FILES, LIMITS, NETWORK, Ability, missing, ports_are_open


def seen(*, files: bool, network: bool) -> tuple[Ability, ...]:
    return (
        Ability(FILES, files, ""),
        Ability("user", False, "", "run Torpor as root"),
        Ability(NETWORK, network, ""),
        Ability(LIMITS, False, ""),
    )


@pytest.mark.parametrize(
    ("files", "network", "lacking"),
    [(True, True, []), (True, False, [NETWORK]), (False, True, [FILES]), (False, False, [FILES, NETWORK])],
)
def test_only_files_processes_and_network_stand_between_users(*, files: bool, network: bool, lacking: list[str]) -> None:
    abilities = seen(files=files, network=network)
    assert [ability.what for ability in missing(abilities)] == lacking
    assert ports_are_open(abilities) is not network
