"""The dashboard of an installation whose workspaces are not confined."""

import json
import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.support.browser import BrowserUser, browser_user, running_chromium
from tests.support.product import NAMESPACES_REFUSED, Product, product, without_confinement

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_chromium() as running:
        yield running


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    folder = tmp_path_factory.mktemp("product")
    with product(folder, **without_confinement(folder)) as running:
        yield running


@pytest.fixture
def admin(browser: Browser, here: Product) -> Iterator[BrowserUser]:
    written = json.loads((here.data / "credentials.json").read_text())
    with browser_user(browser, f"http://localhost:{here.port}") as sitting:
        sitting.enter(written["username"], written["password"])
        yield sitting


def test_the_system_page_shows_what_is_missing(admin: BrowserUser) -> None:
    admin.page.goto(f"{admin.url}/system")
    card = admin.page.get_by_role("region", name="Confinement")
    expect(card).to_contain_text("Not confined: files and processes")
    expect(card).to_contain_text(NAMESPACES_REFUSED)
    expect(card.locator("code").first).to_have_text(re.compile(r"allow user namespaces|CAP_SYS_ADMIN"))
    expect(card).to_contain_text("for one user")


def test_the_form_shows_why_a_second_user_is_refused(admin: BrowserUser) -> None:
    admin.page.goto(f"{admin.url}/users")
    admin.page.get_by_role("button", name="New user").click()
    dialog = admin.page.get_by_role("dialog")
    dialog.get_by_label("Username").fill("eve")
    dialog.get_by_role("button", name="Create").click()
    expect(dialog.get_by_role("alert")).to_contain_text("user 'eve' was not created")
    expect(dialog.get_by_role("alert")).to_contain_text("--unconfined")


def test_the_form_warns_of_the_open_port_of_a_command(admin: BrowserUser) -> None:
    admin.page.get_by_role("button", name="New workspace").click()
    dialog = admin.page.get_by_role("dialog")
    warning = dialog.get_by_text("every local process can connect")
    expect(dialog.get_by_role("radio").first).to_be_visible()
    expect(warning).to_have_count(0)
    dialog.locator("input[value=command]").check()
    expect(warning).to_be_visible()
