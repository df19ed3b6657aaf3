"""Does a person with a browser get from the printed address to a terminal in a workspace, and back to sleep?"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.async_api import expect

from tests.browser import ARTIFACTS, chromium
from tests.e2e.product import Product, product

pytestmark = [pytest.mark.anyio, pytest.mark.browser]


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Product]:
    with product(tmp_path) as running:
        yield running


async def test_from_the_printed_address_to_a_terminal_and_back_to_sleep(here: Product, tmp_path: Path) -> None:
    credentials = json.loads((here.data / "credentials.json").read_text())
    async with chromium(tmp_path / "profile", viewport={"width": 1100, "height": 760}) as browser:
        page = await browser.new_page()
        complaints: list[str] = []
        page.on("pageerror", lambda error: complaints.append(str(error)))
        await page.goto(f"http://localhost:{here.port}/")
        await page.fill("#username", credentials["username"])
        await page.fill("#password", "wrong")
        await page.press("#password", "Enter")
        await expect(page.locator("#door-error")).to_be_visible()
        await page.fill("#password", credentials["password"])
        await page.press("#password", "Enter")

        await page.click("#new")
        await page.fill("#name", "demo")
        await page.press("#name", "Enter")
        card = page.locator("[data-workspace=demo]")
        await expect(card).to_have_attribute("data-phase", "RUNNING", timeout=30_000)
        ARTIFACTS.mkdir(exist_ok=True)
        await page.screenshot(path=ARTIFACTS / "e2e-page.png")

        async with browser.expect_page() as opened:
            await card.locator("[data-action=open]").click()
        terminal = await opened.value
        assert terminal.url == f"http://demo.localhost:{here.port}/"
        rows = terminal.locator(".xterm-rows")
        await expect(rows).to_contain_text("$", timeout=20_000)
        await terminal.keyboard.type("echo hi-$((6*7)) | tee note\n")
        await expect(rows).to_contain_text("hi-42", timeout=20_000)
        await terminal.screenshot(path=ARTIFACTS / "e2e-terminal.png")

        await card.locator("[data-action=archive]").click()
        await expect(card).to_have_attribute("data-phase", "ARCHIVED", timeout=30_000)
        await terminal.reload()
        await expect(terminal.locator("body")).to_contain_text("torpor start demo")
        await terminal.screenshot(path=ARTIFACTS / "e2e-asleep.png")

        await card.locator("[data-action=start]").click()
        await expect(card).to_have_attribute("data-phase", "RUNNING", timeout=30_000)
        assert here.ok("exec", "demo", "--", "cat", "note") == "hi-42\n"

        await card.locator("[data-action=delete]").click()
        await page.screenshot(path=ARTIFACTS / "e2e-delete.png")
        await page.check("#purge")
        await page.locator("#delete-dialog .danger").click()
        await expect(card).to_have_count(0, timeout=30_000)
        await page.click("#sign-out")
        await expect(page.locator("#sign-in")).to_be_visible()
        assert complaints == []
