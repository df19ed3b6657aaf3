"""code-server is installed on first use, works in a browser, and keeps extensions and settings, with and without a sandbox."""

import contextlib
import json
import stat
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support.browser import ARTIFACTS, running_chromium
from tests.support.listeners import processes_of, program_socket, tcp_listeners
from tests.support.product import Product, processes_with, product, without_confinement
from tests.support.waiting import wait_until
from torpor.runtimes.process.paths import runtime_paths

# It downloads 250 MB, and the editor needs a browser.
pytestmark = [pytest.mark.e2e, pytest.mark.deep]

EXTENSION = {"publisher": "torpor", "name": "tiny", "version": "1.0.0", "engines": {"vscode": "^1.50.0"}, "main": "./main.js"}
EXTENSION |= {"activationEvents": ["onStartupFinished"]}
# The editor shows the lines of an output channel from a log file that the replaced module spdlog writes.
MAIN = """
const vscode = require('vscode');
exports.activate = () => vscode.window.createOutputChannel('Tiny').appendLine('tiny says hello');
"""
# Only the editor and the terminal: a panel that opens late takes the focus.
SETTINGS = '{"chat.disableAIFeatures": true, "workbench.startupEditor": "none"}'
LOADED_MS = 120_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_chromium() as running:
        yield running


def test_the_editor_its_terminal_and_extensions_work_and_survive_an_archive(tmp_path: Path, browser: Browser) -> None:
    with product(tmp_path) as here:
        created = here.run("create", "code", "--template", "code-server", "--wait", timeout_s=600)
        assert created.returncode == 0, created.stderr.decode() + here.log()
        own, workspace_id = runtime_paths(here.data), here.show("code")["id"]
        assert set(processes_of(own, workspace_id)) & set(processes_with("code-server")), "the server was looked at"
        assert tcp_listeners(own, workspace_id) == []
        assert stat.S_IMODE(program_socket(own, workspace_id).stat().st_mode) == 0o600

        home = here.home(here.show("code"))
        kept = ".local/share/code-server/User/settings.json"
        here.ok("exec", "code", "--", "sh", "-c", f"mkdir -p $(dirname {kept}) && echo '{SETTINGS}' > {kept}")
        make_extension(home / "tiny.vsix")
        installed = here.ok("exec", "code", "--", "code-server", "--install-extension", "tiny.vsix")
        assert "successfully installed" in installed
        page = open_editor(browser, here, "code")
        run_in_terminal(page, "echo hi-$((6*7)) > note", home / "note", "hi-42\n")
        logs = home / ".local/share/code-server/logs"
        channel = wait_until(lambda: next(logs.glob("*/exthost*/output_logging_*/*Tiny.log"), None), within_s=60)
        assert wait_until(channel.read_text) == "tiny says hello\n"
        picture(page)
        page.context.close()

        here.ok("archive", "code", "--wait")
        page = open_editor(browser, here, "code")  # wakes it
        home = here.home(here.show("code"))
        expect(page.get_by_role("treeitem", name="note")).to_be_visible(timeout=LOADED_MS)
        assert json.loads((home / kept).read_text()) == json.loads(SETTINGS)
        assert "torpor.tiny" in here.ok("exec", "code", "--", "code-server", "--list-extensions")
        page.context.close()
        here.ok("archive", "code", "--wait")

        # The same installation on a machine that cannot confine workspaces.
        here.stop()
        here.environment |= without_confinement(tmp_path)
        here.up()
        here.ok("create", "open", "--template", "code-server", "--wait")
        page = open_editor(browser, here, "open")
        home = here.home(here.show("open"))
        run_in_terminal(page, "echo no-$((6*7)) > note", home / "note", "no-42\n")
        page.context.close()


def make_extension(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as made:
        made.writestr("extension/package.json", json.dumps(EXTENSION))
        made.writestr("extension/main.js", MAIN)
    path.chmod(0o644)


def open_editor(browser: Browser, here: Product, name: str) -> Page:
    """The editor in a tab with its own cookies, after the sign-in; the home is its folder."""
    page = browser.new_context(viewport={"width": 1280, "height": 860}).new_page()
    page.goto(f"http://{name}.localhost:{here.port}/")
    written = json.loads((here.data / "credentials.json").read_text())
    page.get_by_label("Username").fill(written["username"])
    page.get_by_label("Password").fill(written["password"])
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("treeitem", name=".local")).to_be_visible(timeout=LOADED_MS)
    return page


def run_in_terminal(page: Page, command: str, result: Path, expected: str) -> None:
    page.keyboard.press("Control+Backquote")
    terminal = page.locator(".terminal-wrapper.active .xterm-helper-textarea")
    expect(terminal).to_be_visible(timeout=LOADED_MS)

    def typed() -> str:
        """What the command wrote. It is typed again if something in the editor took the focus meanwhile."""
        terminal.press("Control+C")
        terminal.press_sequentially(f"{command}\n")
        return wait_until(lambda: result.read_text() if result.exists() else None, within_s=20)

    assert patiently(typed) == expected


def patiently(attempt: Callable[[], str], times: int = 4) -> str:
    for _ in range(times - 1):
        with contextlib.suppress(TimeoutError):
            return attempt()
    return attempt()


def picture(page: Page) -> None:
    ARTIFACTS.mkdir(exist_ok=True)
    page.screenshot(path=ARTIFACTS / "e2e-code-server.png")
