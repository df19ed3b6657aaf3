"""Commands in a terminal and CPU use keep a workspace awake."""

from torpor.domain.busy import CPU_WINDOW_S, Foreground, Work, WorkHistory, busy_with, cpu_share, with_observation

TTL_S = 100.0
LOOK_S = 10.0


def seen(*works: Work) -> tuple[WorkHistory, Work, float]:
    """The history of these, one check after the other."""
    history = WorkHistory()
    for number, work in enumerate(works):
        history = with_observation(history, work, number * LOOK_S)
    return history, works[-1], (len(works) - 1) * LOOK_S


def busy(*works: Work, counts_cpu: bool = True) -> str | None:
    history, work, now = seen(*works)
    return busy_with(history, work, now, foreground_ttl_s=TTL_S, counts_cpu=counts_cpu)


def at_work(cpu_s: float = 0.0, quiet_s: float | None = None, group: int = 7, command: str = "sleep 600") -> Work:
    return Work("terminal", 0.0, (Foreground(1, group, command, cpu_s, quiet_s),))


def using(*cpu_s: float) -> list[Work]:
    return [Work("terminal", one) for one in cpu_s]


def test_a_workspace_without_work_is_not_busy() -> None:
    assert busy(*using(0, 0, 0)) is None


def test_an_idle_command_counts_as_busy_until_its_ttl() -> None:
    assert busy(*[at_work()] * 10) == "the command 'sleep 600' runs in a terminal"
    assert busy(*[at_work()] * 11) is None


def test_input_and_output_of_its_terminal_are_activity() -> None:
    assert busy(*[at_work()] * 20, at_work(quiet_s=TTL_S - 1)) is not None
    assert busy(*[at_work(quiet_s=1000)] * 20) is None


def test_a_terminal_with_a_time_in_the_future_counts_as_active() -> None:
    assert busy(*[at_work()] * 20, at_work(quiet_s=-7200)) is not None


def test_use_of_the_cpu_is_activity_of_a_command() -> None:
    works = [at_work(cpu_s=0.0)] * 20
    assert busy(*works, at_work(cpu_s=0.01)) is not None
    assert busy(*works, at_work(cpu_s=0.01), *[at_work(cpu_s=0.01)] * 10) is None


def test_another_command_restarts_the_ttl() -> None:
    assert busy(*[at_work(group=7)] * 20, at_work(group=8)) is not None


def test_more_than_five_percent_of_a_core_over_a_minute_are_busy() -> None:
    minute = int(CPU_WINDOW_S / LOOK_S)
    assert busy(*using(*[0.51 * number for number in range(minute + 1)])) == "its programs use 5% of a core"
    assert busy(*using(*[0.49 * number for number in range(minute + 1)])) is None


def test_cpu_counts_from_the_first_check_and_for_one_minute() -> None:
    assert busy(*using(1000, 1000.1)) is None, "CPU time before the first check may be old"
    assert busy(*using(0, 4)) is not None
    assert busy(*using(0, *[4] * 6)) is not None
    assert busy(*using(0, *[4] * 8)) is None


def test_a_falling_cpu_count_subtracts_nothing() -> None:
    history, _, _ = seen(*using(100, 106, 1, 4))
    assert cpu_share(history) * CPU_WINDOW_S == 9


def test_cpu_can_be_excluded() -> None:
    assert busy(*using(0, 60), counts_cpu=False) is None


def test_a_command_is_described_in_one_short_printable_line() -> None:
    said = busy(at_work(command="a\x1b[31m\nb" + "x" * 100))
    assert said is not None
    assert said.isprintable()
    assert len(said) < 100
