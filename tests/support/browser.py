"""Drive a real Chromium in tests."""

import contextlib
import os
import shutil
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import BrowserContext, async_playwright
from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, expect, sync_playwright

ARTIFACTS = Path(__file__).parents[2] / "artifacts"
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)


def find_chromium() -> str:
    """The path of Chromium. Without it the test is skipped; in CI it fails."""
    found = shutil.which("chromium")
    if found is None and os.environ.get("CI"):
        pytest.fail("CI must have a chromium: these tests are not to be skipped there")
    if found is None:
        pytest.skip("there is no chromium on this machine")
    return found


@contextlib.asynccontextmanager
async def chromium(profile: Path, **context: Any) -> AsyncIterator[BrowserContext]:
    """A browser with its own profile, closed at the end."""
    executable = find_chromium()
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch_persistent_context(
            profile, executable_path=executable, args=FLAGS, **context
        )
        yield browser
        await browser.close()


@contextlib.contextmanager
def running_chromium() -> Iterator[Browser]:
    """One browser for many tests; each test has its own context."""
    executable = find_chromium()
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=executable, args=FLAGS)
        yield running
        running.close()


@dataclass
class BrowserUser:
    """A user of the dashboard in a browser."""

    page: Page
    url: str
    complaints: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", self._heard)

    def _heard(self, message: ConsoleMessage) -> None:
        # Error responses and lost connections are expected in some tests; violations of the content security policy are not.
        if message.type == "error" and not message.text.startswith("Failed to load resource"):
            self.complaints.append(message.text)

    def sign_in(self, username: str, password: str) -> None:
        self.page.get_by_label("Username").fill(username)
        self.page.get_by_label("Password").fill(password)
        self.page.get_by_role("button", name="Sign in").click()

    def enter(self, username: str, password: str, path: str = "/") -> None:
        self.page.goto(self.url + path)
        self.sign_in(username, password)
        expect(self.page.get_by_role("button", name=username)).to_be_visible()

    def row(self, name: str) -> Locator:
        return self.page.locator(f'li[data-workspace="{name}"]')

    def buttons(self, name: str) -> list[str]:
        shown = self.row(name).locator("[data-action]").all()
        return [button.get_attribute("data-action") or "" for button in shown]

    def see(self, name: str, phase: str, within_s: float = 30) -> None:
        """Wait until the list or the page shows this phase and no operation is in progress."""
        shown = self.page.locator(f'[data-workspace="{name}"][data-phase="{phase}"][data-moving="false"]')
        expect(shown).to_be_visible(timeout=within_s * 1000)

    def create(self, name: str, template: str = "terminal", command: str = "") -> None:
        """Create a workspace with the dialog; the page of the workspace is open afterwards."""
        self.page.get_by_role("button", name="New workspace").click()
        dialog = self.page.get_by_role("dialog")
        dialog.get_by_label("Name", exact=True).fill(name)
        dialog.locator(f"input[value={template}]").check()
        if command:
            dialog.get_by_label("Command", exact=True).fill(command)
        dialog.get_by_role("button", name="Create").click()
        expect(self.page.get_by_role("heading", name=name, level=1)).to_be_visible()

    def go(self, tab: str) -> None:
        self.page.get_by_role("navigation", name="Pages").get_by_role("link", name=tab).click()

    def sign_out(self) -> None:
        self.page.get_by_role("button", expanded=False).and_(self.page.locator(".user")).click()
        self.page.get_by_role("button", name="Sign out", exact=True).click()
        expect(self.page.get_by_label("Username")).to_be_visible()

    def picture(self, name: str) -> None:
        (ARTIFACTS / "dashboard").mkdir(parents=True, exist_ok=True)
        # The backdrop of a dialog is as large as the window, not as the page.
        is_plain = self.page.get_by_role("dialog").count() == 0
        self.page.screenshot(path=ARTIFACTS / "dashboard" / f"{name}.png", full_page=is_plain)

    def fits(self) -> bool:
        """Whether the page is not wider than the window."""
        return bool(self.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"))


@contextlib.contextmanager
def browser_user(browser: Browser, url: str, **context: Any) -> Iterator[BrowserUser]:
    """A browser context with its own cookies. Fails if the page reported an error."""
    made = browser.new_context(**{"viewport": {"width": 1180, "height": 820}, **context})
    sitting = BrowserUser(made.new_page(), url)
    try:
        yield sitting
        assert not sitting.complaints, "\n".join(sitting.complaints)
    finally:
        made.close()
