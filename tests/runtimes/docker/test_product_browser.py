"""Test a workspace from an image in a real Chromium: terminal, ports, archive and wake."""

import json

import pytest
from playwright.sync_api import Page, expect

from tests.support.browser import ARTIFACTS, browser_user, running_chromium
from tests.support.docker_engine import DockerEngine
from tests.support.product import Product

WRITE = "head -c 300000 /dev/urandom > noise; (stat -c '%a %s %u' noise; cat noise) | wc -c > size"
SERVE = """
import socket
listening = socket.create_server(("127.0.0.1", 3000))
while True:
    connection, _ = listening.accept()
    connection.recv(65536)
    connection.sendall(b"HTTP/1.1 200 OK\\r\\ncontent-type: text/plain\\r\\ncontent-length: 9\\r\\n\\r\\nport 3000")
    connection.close()
"""


@pytest.mark.parametrize("user", ["root", "1000:100"])
def test_an_image_in_the_browser(product: Product, engine: DockerEngine, packed_image: bytes, user: str) -> None:
    """The image has no /etc/passwd, and names this user, whose files are in no home."""
    reference = f"torpor-browser:{user.replace(':', '-')}"
    engine.docker("import", "--change", f"USER {user}", "-", reference, stdin=packed_image)
    written = json.loads((product.data / "credentials.json").read_text())
    address = f"http://demo.localhost:{product.port}/"
    with running_chromium() as browser, browser_user(browser, f"http://localhost:{product.port}") as sitting:
        sitting.enter(written["username"], written["password"])
        sitting.page.get_by_role("button", name="New workspace").click()
        dialog = sitting.page.get_by_role("dialog")
        dialog.get_by_label("Name", exact=True).fill("demo")
        dialog.locator("input[value=image]").check()
        dialog.get_by_label("Image", exact=True).fill(reference)
        ARTIFACTS.mkdir(exist_ok=True)
        sitting.page.screenshot(path=ARTIFACTS / "engine-create.png")
        dialog.get_by_role("button", name="Create").click()
        sitting.see("demo", "RUNNING", within_s=60)
        sitting.page.screenshot(path=ARTIFACTS / "engine-workspace.png")

        terminal = sitting.page.context.new_page()
        terminal.goto(address)
        type_in(terminal, "echo hi-$((6*7)) > note; cat note", "hi-42")
        terminal.screenshot(path=ARTIFACTS / "engine-terminal.png")
        product.ok("exec", "demo", "--", "sh", "-c", WRITE)
        product.ok("exec", "demo", "--", "sh", "-c", f"nohup /opt/torpor/bin/python3 -S -c '{SERVE}' >/dev/null 2>&1 &")
        served = sitting.page.context.new_page()
        served.goto(f"http://3000--demo.localhost:{product.port}/")
        expect(served.locator("body")).to_contain_text("port 3000")
        before = product.run("exec", "demo", "--", "cat", "noise").stdout
        product.ok("archive", "demo", "--wait")
        terminal.goto(address)
        type_in(terminal, "cat note", "hi-42")
        assert product.run("exec", "demo", "--", "cat", "noise").stdout == before
        assert product.ok("exec", "demo", "--", "id", "-u").strip() == "1000"


def type_in(terminal: Page, command: str, expected: str) -> None:
    rows = terminal.locator(".xterm-rows")
    expect(rows).to_contain_text("$", timeout=60_000)
    terminal.keyboard.type(f"{command}\n")
    expect(rows).to_contain_text(expected, timeout=20_000)
