"""Is everything that the page names there, and does nothing in it need more than its own origin?"""

import re

import pytest

from torpor.dashboard.assets import HEADERS, asset
from torpor.domain.states import Operation, Phase, Wish

FILES = ["/page/index.html", "/page/page.css", "/page/page.js", "/page/logo.svg"]


def text(path: str) -> str:
    found = asset(path)
    assert found is not None
    return found.body.decode()


@pytest.mark.parametrize(
    ("path", "content_type"),
    [
        ("/", "text/html; charset=utf-8"),
        ("/page/page.css", "text/css; charset=utf-8"),
        ("/page/page.js", "text/javascript; charset=utf-8"),
        ("/page/logo.svg", "image/svg+xml"),
        ("/favicon.ico", "image/svg+xml"),
    ],
)
def test_each_file_has_its_type(path: str, content_type: str) -> None:
    found = asset(path)
    assert found is not None
    assert found.content_type == content_type
    assert re.fullmatch(r'"[0-9a-f]{32}"', found.etag)


@pytest.mark.parametrize(
    "path",
    ["", "/page", "/page/", "/page/../assets.py", "/assets.py", "//", "/page//page.js", "/page/%70age.js", "page/page.js"],
)
def test_nothing_else_is_served(path: str) -> None:
    assert asset(path) is None


def test_what_the_page_names_is_there() -> None:
    named = re.findall(r'(?:src|href)="([^"]+)"', text("/"))
    assert len(named) >= 4
    assert all(asset(path) for path in named)


def test_nothing_stands_inline_and_nothing_comes_from_elsewhere() -> None:
    page = text("/")
    assert not re.search(r"<script(?![^>]*\bsrc=)", page)
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=|javascript:", page)
    for path in FILES:
        assert not re.search(r"""(?:src|href|url|import|from)\s*[=("']+\s*(?:https?:)?//""", text(path)), path
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", text("/page/page.js"))
    assert "default-src 'self'" in HEADERS["Content-Security-Policy"]
    assert "unsafe" not in HEADERS["Content-Security-Policy"]


def test_every_element_that_the_script_looks_up_is_in_the_page() -> None:
    looked_up = set(re.findall(r'\$\("([^"]+)"\)', text("/page/page.js")))
    there = set(re.findall(r'\bid="([^"]+)"', text("/")))
    assert looked_up <= there


def test_the_script_knows_every_word_of_the_product() -> None:
    script = text("/page/page.js")
    tables = dict(re.findall(r"const (\w+) = \{\n(.*?)\n\};", script, re.DOTALL))
    keys = {name: set(re.findall(r"^  (\w+):", body, re.MULTILINE)) for name, body in tables.items()}
    assert keys["ACTIONS"] == set(Phase)
    assert keys["WISHES"] == set(Wish)
    assert keys["OPERATION_SAYS"] == set(Operation) - {Operation.NONE}
