"""The README's screenshot: the list of workspaces with one of each status.

`make picture` writes it to docs/pictures; every other run writes it to the artifacts.
"""

import os
from pathlib import Path

import pytest

from tests.e2e.test_browser import credentials
from tests.support.browser import ARTIFACTS, browser_user, running_chromium
from tests.support.product import SERVE_HOME, Product, product

pytestmark = pytest.mark.browser

WRITE_TO = os.environ.get("TORPOR_TEST_PICTURE")
HOMES_MB = {"api-server": 12, "docs-site": 3, "paper": 31, "training-data": 48}
AT_MOST_BYTES = 200_000


def fill(here: Product, name: str, size_mb: int) -> None:
    """Stopped afterwards, because then the size of its home is measured."""
    here.ok("exec", name, "--", "sh", "-c", f"head -c {size_mb}000000 /dev/urandom > data")
    here.ok("stop", name, "--wait")
    here.until(name, lambda shown: (shown["disk_bytes"] or 0) >= size_mb * 1_000_000)


def test_the_list_of_workspaces_fits_its_picture(tmp_path: Path) -> None:
    with product(tmp_path, TORPOR_MAX_RUNNING_PER_USER="4") as here, running_chromium() as browser:
        for name in HOMES_MB:
            served = ["--template", "command", "--wait", "--", *SERVE_HOME] if name == "docs-site" else ["--wait"]
            here.ok("create", name, *served)
            fill(here, name, HOMES_MB[name])
        here.ok("archive", "training-data", "--wait")
        here.ok("start", "api-server", "--wait")
        here.ok("start", "docs-site", "--wait")

        with browser_user(browser, f"http://localhost:{here.port}", viewport={"width": 1100, "height": 560}) as sitting:
            sitting.enter(*credentials(here))
            for name, phase in zip(HOMES_MB, ("RUNNING", "RUNNING", "STANDBY", "ARCHIVED"), strict=True):
                sitting.see(name, phase)
            assert sitting.fits()
            picture = Path(WRITE_TO) if WRITE_TO else ARTIFACTS / "workspaces.png"
            picture.parent.mkdir(parents=True, exist_ok=True)
            sitting.page.screenshot(path=picture)
            assert picture.stat().st_size < AT_MOST_BYTES
