"""The served files of the dashboard are complete and come from one origin."""

import gzip
import os
import re
from pathlib import Path

import pytest

from torpor.dashboard.assets import BUILT, FILES, HEADERS, NEVER_CHANGES, PAGES, REVALIDATED, asset, read

HASHED = re.compile(r"/page/hashed/[\w-]+-[\w-]{8}\.(js|css)")


@pytest.fixture(autouse=True)
def is_built() -> None:
    if not (BUILT / "index.html").exists():
        if os.environ.get("CI"):
            pytest.fail("CI must have built the dashboard")
        pytest.skip("the dashboard was not built: `make setup` does it")


def text(path: str) -> str:
    found = asset(path)
    assert found is not None
    return found.body.decode()


def referenced_by_the_page() -> list[str]:
    return re.findall(r'(?:src|href)="([^"]+)"', text("/"))


@pytest.mark.parametrize(
    ("path", "content_type"),
    [
        ("/", "text/html; charset=utf-8"),
        ("/page/theme.js", "text/javascript; charset=utf-8"),
        ("/page/logo.svg", "image/svg+xml"),
        ("/favicon.ico", "image/svg+xml"),
    ],
)
def test_each_file_has_its_type_and_is_revalidated(path: str, content_type: str) -> None:
    found = asset(path)
    assert found is not None
    assert found.content_type == content_type
    assert found.cache_control == REVALIDATED
    assert re.fullmatch(r'"[0-9a-f]{32}"', found.etag)


@pytest.mark.parametrize(
    "path", ["/", "/workspaces", "/workspaces/demo", "/workspaces/demo/shell", "/activity", "/system", "/users", "/account"]
)
def test_each_page_is_the_same_document(path: str) -> None:
    assert asset(path) == asset("/")


def test_every_page_has_a_route() -> None:
    assert {page.partition("{")[0].rstrip("/") or "/" for page in PAGES} == {
        "/",
        "/workspaces",
        "/activity",
        "/system",
        "/users",
        "/account",
    }
    assert set(FILES) == {"/favicon.ico", "/page/{path:path}"}


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/page",
        "/page/",
        "/page/../assets.py",
        "/assets.py",
        "//",
        "/page//theme.js",
        "/page/%74heme.js",
        "page/theme.js",
        "/workspaces/demo/else",
        "/workspaces/a/b/c",
        "/page/.stamp",
        "/page/hashed/",
    ],
)
def test_nothing_else_is_served(path: str) -> None:
    assert asset(path) is None


def test_files_that_the_page_references_exist_and_hashed_files_never_change() -> None:
    named = referenced_by_the_page()
    assert len(named) >= 4
    for path in named:
        found = asset(path)
        assert found is not None, path
        assert found.cache_control == (NEVER_CHANGES if HASHED.fullmatch(path) else REVALIDATED), path
    assert sum(HASHED.fullmatch(path) is not None for path in named) == 2


def test_nothing_is_inline_and_nothing_comes_from_another_origin() -> None:
    page = text("/")
    assert not re.search(r"<script(?![^>]*\bsrc=)", page)
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=|javascript:", page)
    assert all(path.startswith("/page/") for path in referenced_by_the_page())
    for path in read(BUILT):
        assert not re.search(r"""(?:src|href|url|import|from)\s*[=("']+\s*(?:https?:)?//""", text(path)), path
    assert "default-src 'self'" in HEADERS["Content-Security-Policy"]
    assert "unsafe" not in HEADERS["Content-Security-Policy"]
    assert "data:" not in HEADERS["Content-Security-Policy"]


def test_a_large_file_is_compressed_for_clients_that_accept_it() -> None:
    (script,) = (path for path in referenced_by_the_page() if HASHED.fullmatch(path) and path.endswith(".js"))
    found = asset(script)
    assert found is not None
    packed, headers = found.served(accept_encoding="gzip, br")
    assert headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(packed) == found.body
    assert len(packed) < len(found.body) / 2
    plain, headers = found.served(accept_encoding="")
    assert plain == found.body
    assert "Content-Encoding" not in headers


def test_the_page_reports_a_missing_build(tmp_path: Path) -> None:
    (only,) = read(tmp_path / "built").values()
    assert b"make setup" in only.body
