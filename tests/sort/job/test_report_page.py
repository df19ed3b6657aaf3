"""The page needs no other files, escapes text, and shows the master and all workers."""

from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from tests.support.sort_reports import BEGAN, SECONDS, job, killed_once, way, worker
from torpor.sort.job.report import JobReport, SortOutcome
from torpor.sort.job.report_page import COLOUR_OF, LEFT, PLOT, STYLE, lanes, page, picture, spans, tick
from torpor.sort.machine.history import Transition
from torpor.sort.machine.states import MasterState, WorkerState

SVG = "{http://www.w3.org/2000/svg}"
VOID = {"meta", "br", "hr", "img", "input", "link"}
EVIL = """<script>alert("1")</script> & 'x' ]]> --> \N{SNOWMAN}"""


class Elements(HTMLParser):
    """Checks that every element is closed by its own end tag."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.seen: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def parsed(report: JobReport) -> Elements:
    elements = Elements()
    elements.feed(page(report))
    elements.close()
    assert elements.open == []
    return elements


def drawn(report: JobReport) -> ElementTree.Element:
    return ElementTree.fromstring(picture(report))


def titles(report: JobReport) -> list[str]:
    return [title.text or "" for title in drawn(report).iter(f"{SVG}title")]


def breaks(report: JobReport) -> list[ElementTree.Element]:
    return [group for group in drawn(report).iter(f"{SVG}g") if group.get("class") == "break"]


@pytest.mark.parametrize("outcome", list(SortOutcome))
@pytest.mark.parametrize("count", [0, 1, 4, 16, 200])
def test_the_page_is_well_formed_with_a_lane_for_master_and_each_worker(count: int, outcome: SortOutcome) -> None:
    report = job(outcome, "it broke", tuple(worker(index, 100) for index in range(count)))
    parsed(report)
    names = [text.text or text[0].tail for text in drawn(report).iter(f"{SVG}text") if text.get("class") == "name"]
    assert names == ["master", *(f"worker {index}" for index in range(count))]


def test_the_page_loads_no_other_files() -> None:
    elements = parsed(job())
    assert not {"script", "link", "img", "iframe", "object"} & set(elements.seen)
    assert not {"href", "src"} & {name for name, _ in elements.attributes}
    assert "url(" not in STYLE
    assert "@import" not in STYLE


def test_the_page_suits_light_and_dark() -> None:
    light, dark = STYLE.split("prefers-color-scheme: dark")
    for colour in {colour for colours in COLOUR_OF.values() for colour in colours.split()} - {"waiting", "completed"}:
        assert f"--{colour}:" in light
        assert f"--{colour}:" in dark


def test_text_of_workers_is_escaped_everywhere() -> None:
    history = (
        Transition("Initializing", "Sampling", BEGAN, EVIL, 1),
        Transition("Sampling", "Failed", BEGAN + 1, EVIL, 1),
        Transition("Failed", EVIL, BEGAN + 1, EVIL, 2),
    )
    evil = replace(worker(0, 10, history), identity=EVIL)
    report = replace(job(SortOutcome.FAILED, EVIL, (evil,)), job=EVIL, format=EVIL, history=history)
    elements = parsed(report)
    assert "script" not in elements.seen
    assert elements.text.count(EVIL) > 10
    assert any(EVIL in title for title in titles(report))


def test_every_state_has_a_colour() -> None:
    assert COLOUR_OF.keys() == {state.value for state in (*WorkerState, *MasterState)}


def test_each_state_lasts_until_the_next_and_the_last_until_the_end() -> None:
    stays = spans(way(), BEGAN, SECONDS)
    assert [stay.state for stay in stays] == [one.target for one in way()]
    assert [(stay.begins, stay.ends) for stay in stays] == [(0.25 * number, 0.25 * (number + 1)) for number in range(8)]
    assert spans((), BEGAN, SECONDS) == ()


def test_a_clock_that_is_set_back_gives_no_negative_spans() -> None:
    history = (Transition("", "Sampling", BEGAN + 1, ""), Transition("Sampling", "Sorting", BEGAN, ""))
    assert all(stay.ends >= stay.begins for stay in spans(history, BEGAN, 2.0))
    drawn(job(workers=(worker(0, 10, history),)))


def test_bars_are_at_the_position_of_their_time() -> None:
    report = job(workers=(worker(0, 100),))
    # Two seconds of work from the worker's first transition on, a tenth before it and a fiftieth after it.
    scale = PLOT / 2.24
    bars = [group for group in drawn(report).iter(f"{SVG}g") if (group[0].text or "").startswith("Shuffling, attempt 1")]
    assert len(bars) == 1
    rect = bars[0].find(f"{SVG}rect")
    assert rect is not None
    assert float(rect.attrib["x"]) == pytest.approx(LEFT + 1.2 * scale, abs=0.01)
    assert float(rect.attrib["width"]) == pytest.approx(0.25 * scale, abs=0.01)


def test_a_long_wait_for_workers_is_cut_from_the_chart() -> None:
    late = replace(job(), seconds=10_000.0)
    drawn_lanes, length = lanes(late)
    assert length == pytest.approx(2.24)
    assert drawn_lanes[0].spans[0].state == "WaitingForWorkers"


def test_a_restart_is_a_mark_with_the_reason() -> None:
    broken, whole = job(workers=(worker(0, 100, killed_once()),)), job(workers=(worker(0, 100),))
    [mark] = breaks(broken)
    assert mark[0].text == "failed at 0.700 s: killed; restarted at 0.700 s: started again"
    assert mark[-1].text == "2"
    assert breaks(whole) == []


def test_a_failure_without_a_restart_is_a_mark_too() -> None:
    history = (*way()[:3], Transition("Sorting", "Failed", BEGAN + 1, "the disk is full", 1))
    [mark] = breaks(job(SortOutcome.FAILED, "", (worker(0, 0, history),)))
    assert (mark[0].text, mark[-1].text) == ("failed at 1.20 s: the disk is full", "×")


def test_the_masters_first_state_is_drawn_from_the_beginning() -> None:
    first = lanes(job())[0][0].spans[0]
    assert (first.state, first.begins) == ("WaitingForWorkers", 0.0)
    assert first.ends == pytest.approx(0.95)


def test_a_worker_without_a_history_has_an_empty_lane() -> None:
    silent = job(SortOutcome.FAILED, "lost", (worker(0, 0, ()),))
    assert "the history is not available" in parsed(silent).text
    assert [lane.spans for lane in lanes(silent)[0]][1] == ()


@pytest.mark.parametrize(
    ("length", "step"), [(0.001, 0.0002), (0.9, 0.2), (2.0, 0.5), (8.0, 1.0), (8.1, 2.0), (3600.0, 500.0), (1e6, 200_000.0)]
)
def test_ticks_are_few_and_round(length: float, step: float) -> None:
    assert tick(length) == step
    assert length / step <= 8
