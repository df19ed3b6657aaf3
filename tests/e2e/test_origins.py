"""A browser keeps no data of the workspace that had the same host name before."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page

from tests.e2e.test_browser import credentials
from tests.support.browser import BrowserUser, browser_user, running_chromium
from tests.support.product import SERVE_HOME, Product, product

pytestmark = pytest.mark.browser

# It forwards requests and reads each response; the greedy one also that of the sign-in.
WORKER = """
const isGreedy = new URL(self.location).searchParams.has("greedy")
self.addEventListener("install", () => self.skipWaiting())
self.addEventListener("activate", event => event.waitUntil(self.clients.claim()))
self.addEventListener("fetch", event => {
    if (event.request.mode !== "navigate" || (isGreedy && event.request.url.includes("/.torpor/enter")))
        event.respondWith(fetch(event.request).then(async answer => answer.type === "opaqueredirect" ? answer
            : new Response("the worker read: " + await answer.text(), {headers: {"Content-Type": "text/html"}})))
})
"""
REGISTER = "path => navigator.serviceWorker.register(path).then(() => navigator.serviceWorker.ready).then(() => true)"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_chromium() as running:
        yield running


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    with product(tmp_path_factory.mktemp("origins")) as running:
        yield running


@pytest.fixture
def admin(browser: Browser, here: Product) -> Iterator[BrowserUser]:
    with browser_user(browser, f"http://localhost:{here.port}") as sitting:
        sitting.enter(*credentials(here))
        yield sitting


def serve(here: Product, words: str) -> None:
    here.ok("create", "place", "--template", "command", "--wait", "--", *SERVE_HOME)
    written = here.run(
        "exec", "place", "--", "sh", "-c", f"echo '{words}' > index.html; cat > worker.js", stdin=WORKER.encode()
    )
    assert written.returncode == 0, written.stderr


def shown(page: Page, here: Product) -> str:
    """What a script of the page gets from the workspace."""
    page.goto(f"http://place.localhost:{here.port}/")
    asked: str = page.evaluate("fetch('/').then(answer => answer.text())")
    return asked.strip()


def test_a_service_worker_of_the_former_workspace_reads_nothing_of_the_new_one(admin: BrowserUser, here: Product) -> None:
    page = admin.page
    serve(here, "the former one")
    assert shown(page, here) == "the former one"
    assert page.evaluate(REGISTER, "/worker.js")
    assert "the worker read: " in shown(page, here)
    page.evaluate("localStorage.setItem('left', 'behind'); document.cookie = 'left=behind; max-age=9999'")

    here.ok("delete", "place", "--purge", "--yes", "--wait")
    serve(here, "the new one")
    assert shown(page, here) == "the new one"
    assert page.evaluate("navigator.serviceWorker.getRegistrations().then(found => found.length)") == 0
    assert page.evaluate("localStorage.length") == 0
    assert "left" not in page.evaluate("document.cookie")
    assert shown(page, here) == "the new one"

    # The same workspace again: its own data stays.
    page.evaluate("localStorage.setItem('kept', 'here'); document.cookie = 'kept=here; max-age=9999'")
    page.context.clear_cookies(name="torpor_door")
    assert shown(page, here) == "the new one"
    assert page.evaluate("localStorage.getItem('kept')") == "here"
    assert "kept=here" in page.evaluate("document.cookie")
    here.ok("delete", "place", "--purge", "--yes", "--wait")


def test_a_service_worker_cannot_take_over_the_sign_in(admin: BrowserUser, here: Product) -> None:
    """Its forwarded requests come from another site, without the cookies that the code needs."""
    page = admin.page
    serve(here, "the former one")
    assert shown(page, here) == "the former one"
    assert page.evaluate(REGISTER, "/worker.js?greedy")
    here.ok("delete", "place", "--purge", "--yes", "--wait")
    serve(here, "the new one")
    asked = shown(page, here)
    assert "the worker read: " in asked
    assert "the new one" not in asked
    here.ok("delete", "place", "--purge", "--yes", "--wait")
