"""The dashboard and the terminals warn before a stop, and a user can prevent it."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.e2e.test_sleep_warning import events, followed
from tests.support.browser import ARTIFACTS, BrowserUser, browser_user, running_chromium
from tests.support.product import Product, product

pytestmark = pytest.mark.browser

TTL_S = 45
HASTE = {"TORPOR_TTL_INTERVAL": "0.5", "TORPOR_CONNECTION_LEASE": "3", "TORPOR_STANDBY_TTL": str(TTL_S)}
WITHIN_MS = 120_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_chromium() as running:
        yield running


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    with product(tmp_path_factory.mktemp("product"), TORPOR_MAX_RUNNING_PER_USER="9", **HASTE) as running:
        yield running


@pytest.fixture
def admin(browser: Browser, here: Product) -> Iterator[BrowserUser]:
    with browser_user(browser, f"http://localhost:{here.port}", color_scheme="light") as sitting:
        written = json.loads((here.data / "credentials.json").read_text())
        sitting.enter(written["username"], written["password"])
        yield sitting


def test_a_banner_counts_down_and_its_button_keeps_the_workspace_awake(admin: BrowserUser, here: Product) -> None:
    here.ok("create", "drowsy", "--wait")
    banner = admin.page.locator('[data-sleeping-soon="drowsy"]')
    expect(banner).to_be_visible(timeout=WITHIN_MS)
    expect(banner).to_contain_text(re.compile(r"drowsy goes to sleep in 0:\d\d: it is not in use\."))
    expect(admin.page.locator("p.unseen[role=status]")).to_contain_text("drowsy goes to sleep soon")
    first = banner.inner_text()
    expect(banner).not_to_have_text(first)
    admin.picture("banner-light")
    assert admin.fits()
    admin.page.set_viewport_size({"width": 390, "height": 780})
    assert admin.fits()
    admin.picture("banner-phone")
    admin.page.set_viewport_size({"width": 1180, "height": 820})

    banner.get_by_role("button", name="Keep awake for 1 hour").click()
    expect(banner).to_have_count(0)
    held = json.loads(here.ok("hold", "drowsy", "--json"))["items"]
    assert [one["reason"] for one in held] == ["kept awake for 1 hour"]
    seen = here.show("drowsy")
    assert (seen["sleeps_at"], seen["desired_state"]) == (None, "RUNNING")
    admin.page.reload()
    expect(admin.row("drowsy")).to_be_visible()
    expect(banner).to_have_count(0)
    here.ok("delete", "drowsy", "--purge", "--wait")


def test_the_terminals_show_the_warning_and_an_open_tab_does_not_delay_the_stop(
    admin: BrowserUser, here: Product, tmp_path: Path
) -> None:
    here.ok("create", "tabbed", "--wait")
    shell = admin.page
    with followed(here, "tabbed", tmp_path / "events") as told:
        shell.goto(f"{admin.url}/workspaces/tabbed/shell")
        terminal = shell.context.new_page()
        terminal.goto(f"http://tabbed.localhost:{here.port}/")
        for page in (shell, terminal):
            expect(page.locator(".xterm-rows")).to_contain_text("$", timeout=WITHIN_MS)
        size = shell.locator(".shell-screen").bounding_box()
        expect(terminal.locator(".xterm-rows")).to_contain_text("[torpor] tabbed goes to sleep at ", timeout=WITHIN_MS)
        expect(shell.locator(".xterm-rows")).to_contain_text("[torpor] goes to sleep at ")
        expect(shell.locator('[data-sleeping-soon="tabbed"]')).to_be_visible()
        assert shell.locator(".shell-screen").bounding_box() == size, "a new size would be output, and output is use"
        admin.picture("warning-shell")
        terminal.screenshot(path=ARTIFACTS / "terminal-warning.png")
        expect(terminal.locator("#message")).to_contain_text("Reconnecting", timeout=WITHIN_MS)
        said = [(event["event"], event["workspace"]["desired_state"]) for event in events(told)]
    warned = said.index(("sleeping_soon", "RUNNING"))
    assert said[warned + 1] == ("state_changed", "STANDBY"), "nothing took the warning back but the stop"
    terminal.close()


def test_a_key_in_the_terminal_removes_the_banner(admin: BrowserUser, here: Product) -> None:
    here.ok("create", "typed", "--wait")
    terminal = admin.page.context.new_page()
    terminal.goto(f"http://typed.localhost:{here.port}/")
    expect(terminal.locator(".xterm-rows")).to_contain_text("[torpor] typed goes to sleep at ", timeout=WITHIN_MS)
    banner = admin.page.locator('[data-sleeping-soon="typed"]')
    expect(banner).to_be_visible()
    terminal.locator("#terminal").click()
    terminal.keyboard.type("echo awake-$((6*7))\n")
    expect(terminal.locator(".xterm-rows")).to_contain_text("awake-42")
    expect(banner).to_have_count(0, timeout=WITHIN_MS)
    assert here.show("typed")["desired_state"] == "RUNNING"
    terminal.close()
