"""The first start prints a sign-in link that works once; later starts print none."""

from pathlib import Path

import httpx2
import pytest

from tests.support.product import Product

pytestmark = [pytest.mark.e2e, pytest.mark.same_everywhere]


def test_the_first_start_prints_a_link_that_signs_in_once(tmp_path: Path) -> None:
    here = Product(tmp_path / "data")
    with here.running():
        link = here.ready.rpartition(" ")[2]
        assert link.startswith(f"http://localhost:{here.port}/sign-in/link?code=torpor_")
        with httpx2.Client() as browser, httpx2.Client() as other:
            assert browser.get(link).status_code == 303
            assert browser.get(f"http://localhost:{here.port}/api/v1/me").json()["username"] == "admin"
            assert other.get(link).status_code == 401
        assert link.rpartition("=")[2] not in here.log()
    with here.running():
        assert here.ready.endswith(f"(sign in as admin; the password is in {here.data / 'credentials.json'})")
