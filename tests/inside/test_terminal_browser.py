"""A user with a browser gets a terminal and keeps it."""

import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import websockets
from playwright.async_api import BrowserContext, Page, expect
from tests.support.browser import ARTIFACTS, chromium
from tests.support.waiting import until

import torpor

pytestmark = [pytest.mark.anyio, pytest.mark.browser]

Serve = Callable[[], subprocess.Popen[bytes]]

FITS = """height => {
    const bottom = document.querySelector('.xterm-rows').getBoundingClientRect().bottom
    return height - 40 < bottom && bottom <= height
}"""
LINE = "terminal.buffer.active.getLine(terminal.buffer.active.baseY + terminal.buffer.active.cursorY).translateToString(true)"
RUNS = f"{LINE} === ''"
"""A command was accepted and has written no output yet."""
PROMPTS = f"{LINE} !== '' && !{LINE}.includes('^C')"
"""The shell waits for a command, after the last one was interrupted."""


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@pytest.fixture
def serve(port: int, tmp_path: Path) -> Iterator[Serve]:
    """Start the terminal, also again after a stop; it is stopped at the end."""
    started: list[subprocess.Popen[bytes]] = []

    def begin() -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, str(Path(torpor.__file__).parent / "inside" / "terminal.py")],
            stdout=subprocess.PIPE,
            env={
                "HOME": str(tmp_path),
                "PATH": os.environ["PATH"],
                "PORT": str(port),
                "PYTHONPATH": str(Path(websockets.__file__).parent.parent),
                "TORPOR_WORKSPACE": "demo",
            },
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"terminal: listening")
        return process

    yield begin
    for process in started:
        process.terminate()
        process.wait(10)
        assert process.stdout is not None
        process.stdout.close()


@pytest.fixture
async def browser(tmp_path: Path) -> AsyncIterator[BrowserContext]:
    async with chromium(tmp_path / "profile", viewport={"width": 1000, "height": 600}, color_scheme="dark") as context:
        yield context


@pytest.fixture
def address(port: int) -> str:
    return f"http://demo.localhost:{port}/"


async def open_page(browser: BrowserContext, address: str, complaints: list[str]) -> Page:
    page = await browser.new_page()
    page.on("console", lambda message: complaints.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: None if request.url.startswith((address, "data:")) else complaints.append(request.url))
    await page.goto(address)
    await shows(page, "$" if os.getuid() else "#")
    return page


async def shows(page: Page, text: str) -> None:
    await expect(page.locator(".xterm-rows")).to_contain_text(text, timeout=10_000)


async def test_typed_text_is_shown_and_kept_over_a_reload(serve: Serve, browser: BrowserContext, address: str) -> None:
    serve()
    complaints: list[str] = []
    page = await open_page(browser, address, complaints)
    assert await page.title() == "demo"
    await page.keyboard.type("kept=yes; ls --color=always -d /*; echo hi-$((6*7))\n")
    await shows(page, "hi-42")
    ARTIFACTS.mkdir(exist_ok=True)
    await page.screenshot(path=ARTIFACTS / "terminal-dark.png")

    await page.reload()
    await shows(page, "hi-42")
    await page.keyboard.type("echo kept-$kept; stty size\n")
    await shows(page, "kept-yes")
    await page.emulate_media(color_scheme="light")
    await page.screenshot(path=ARTIFACTS / "terminal-light.png")
    assert complaints == []


async def test_the_shell_follows_the_window(serve: Serve, browser: BrowserContext, address: str) -> None:
    serve()
    page = await open_page(browser, address, [])
    for width, height in ((1200, 800), (500, 400)):
        await page.set_viewport_size({"width": width, "height": height})
        await until(partial(page.evaluate, FITS, height))
        size = await page.evaluate("`${terminal.rows} ${terminal.cols}`")
        await page.keyboard.type("clear; stty size\n")
        await shows(page, size)
        assert await page.evaluate(FITS, height)


async def test_an_ended_shell_starts_again_on_enter(serve: Serve, browser: BrowserContext, address: str) -> None:
    serve()
    page = await open_page(browser, address, [])
    await page.keyboard.type("exit\n")
    await shows(page, "[process ended, press Enter to start again]")
    await page.keyboard.press("Enter")
    await page.keyboard.type("echo again-$((6*7))\n")
    await shows(page, "again-42")


async def test_a_broken_connection_is_shown_and_reconnected(serve: Serve, browser: BrowserContext, address: str) -> None:
    process = serve()
    page = await open_page(browser, address, [])
    await page.keyboard.type("echo before-$((6*7))\n")
    await shows(page, "before-42")
    await expect(page.locator("#bar")).to_be_hidden()
    process.terminate()
    process.wait(10)
    await expect(page.locator("#message")).to_contain_text("Reconnecting…")
    await expect(page.get_by_role("button", name="Start it")).to_be_visible(timeout=20_000)
    await page.screenshot(path=ARTIFACTS / "terminal-reconnecting.png")
    serve()
    await expect(page.locator("#bar")).to_be_hidden(timeout=20_000)
    await shows(page, "this is a new shell")
    await shows(page, "before-42")
    await page.keyboard.type("echo after-$((6*7))\n")
    await shows(page, "after-42")


async def test_much_output_is_drawn_at_the_pace_of_the_page_and_can_be_stopped(
    serve: Serve, browser: BrowserContext, address: str
) -> None:
    serve()
    page = await open_page(browser, address, [])
    await page.keyboard.type("yes\n")
    await page.wait_for_timeout(1500)
    behind = await page.evaluate("session.received - session.drawn")
    assert behind < 512 * 1024
    await page.keyboard.press("Control+c")
    await shows(page, "^C")
    await until(partial(page.evaluate, PROMPTS))
    await page.keyboard.type("echo stopped-$((6*7))\n")
    await shows(page, "stopped-42")


async def test_a_replayed_terminal_query_is_not_answered_again(serve: Serve, browser: BrowserContext, address: str) -> None:
    serve()
    page = await open_page(browser, address, [])
    await page.keyboard.type("printf '\\033[6n'; read -rsdR answer; echo asked-$((6*7))\n")
    await shows(page, "asked-42")
    await page.reload()
    await shows(page, "asked-42")
    await page.keyboard.type("echo clean-$((6*7))\n")
    await shows(page, "clean-42")
    typed = await page.locator(".xterm-rows").inner_text()
    assert ";1R" not in typed


async def test_two_tabs_are_two_terminals(serve: Serve, browser: BrowserContext, address: str) -> None:
    serve()
    first = await open_page(browser, address, [])
    second = await open_page(browser, address, [])
    # What a browser does when it duplicates a tab.
    name = await first.evaluate("session.name")
    await second.evaluate("name => sessionStorage.setItem('session', name)", name)
    await second.reload()
    await shows(second, "$" if os.getuid() else "#")
    assert await second.evaluate("session.name") != name
    await expect(first.locator("#bar")).to_be_hidden()


async def test_the_keyboard_leaves_the_terminal_for_screen_reader_mode(
    serve: Serve, browser: BrowserContext, address: str
) -> None:
    serve()
    page = await open_page(browser, address, [])
    await page.keyboard.press("Alt+F1")
    button = page.get_by_role("button", name="Screen reader mode")
    await expect(button).to_be_focused()
    await page.keyboard.press("Enter")
    await expect(button).to_have_attribute("aria-pressed", "true")
    await page.keyboard.press("Escape")
    await page.keyboard.type("echo read-$((6*7))\n")
    await expect(page.locator(".xterm-accessibility")).to_contain_text("read-42")


async def test_a_phone_has_buttons_for_missing_keys(serve: Serve, address: str, tmp_path: Path) -> None:
    serve()
    phone = {"viewport": {"width": 390, "height": 700}, "device_scale_factor": 2, "has_touch": True, "is_mobile": True}
    async with chromium(tmp_path / "phone", color_scheme="dark", **phone) as context:
        page = await open_page(context, address, [])
        await page.keyboard.type("sleep 60\n")
        await until(partial(page.evaluate, RUNS))
        await page.get_by_role("button", name="Control").tap()
        await page.keyboard.type("c")
        await shows(page, "^C")
        await until(partial(page.evaluate, PROMPTS))
        await page.keyboard.type("echo up-$((6*7))\n")
        await shows(page, "up-42")
        await page.keyboard.type("clear\n")
        await page.get_by_role("button", name="Up").tap()
        await page.get_by_role("button", name="Up").tap()
        await page.keyboard.press("Enter")
        await shows(page, "up-42")
        ARTIFACTS.mkdir(exist_ok=True)
        await page.screenshot(path=ARTIFACTS / "terminal-phone.png")
