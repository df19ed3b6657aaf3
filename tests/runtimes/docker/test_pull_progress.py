"""The progress of a pull, from lines as Docker sends them."""

from torpor.runtimes.docker.pull_progress import PullProgress


def line(layer: str, status: str, current: int | None = None, total: int | None = None) -> dict[str, object]:
    detail = {name: value for name, value in (("current", current), ("total", total)) if value is not None}
    return {"id": layer, "status": status, "progressDetail": detail}


def test_a_layer_is_downloaded_and_unpacked() -> None:
    counted = PullProgress()
    told = []
    for one in (
        {"status": "Pulling from team/app", "id": "latest"},
        line("a", "Pulling fs layer"),
        line("b", "Already exists"),
        line("a", "Waiting"),
        line("a", "Downloading", 40, 100),
        line("a", "Downloading", 100, 100),
        line("a", "Verifying Checksum"),
        line("a", "Download complete"),
        line("a", "Extracting", 50, 100),
        line("a", "Extracting", 100, 100),
        line("a", "Pull complete"),
        {"status": "Digest: sha256:..."},
    ):
        counted.add(one)
        told.append((counted.done, counted.total))
    assert told == [(0, None)] * 4 + [(40, 200)] + [(100, 200)] * 3 + [(150, 200)] + [(200, 200)] * 3


def test_a_download_that_begins_again_does_not_go_back() -> None:
    counted = PullProgress()
    for current in (60, 5, 70):
        counted.add(line("a", "Downloading", current, 100))
    assert counted.done == 70


def test_waiting_moves_the_deadline_and_is_not_received() -> None:
    counted = PullProgress()
    counted.wait()
    assert (counted.done, counted.received) == (1, 0)
    counted.add(line("a", "Downloading", 10, 100))
    assert (counted.done, counted.received) == (11, 10)


def test_lines_without_numbers_do_no_harm() -> None:
    counted = PullProgress()
    for one in ({}, {"progressDetail": None}, {"id": 7, "status": "Downloading", "progressDetail": {"current": "x"}}):
        counted.add(one)
    assert (counted.done, counted.total) == (0, None)
