"""Each host has its own cookies, and a redirect stays on its host."""

import pytest

from torpor.domain.hostnames import Hosts, is_own_path


@pytest.mark.parametrize("cookie", ["session", "door"])
def test_a_cookie_that_needs_tls_cannot_be_set_by_another_host(cookie: str) -> None:
    plain, secure = Hosts("http://localhost:8080", "localhost"), Hosts("https://torpor.example.com", "work.example.com")
    assert getattr(plain, f"{cookie}_cookie") == f"torpor_{cookie}"
    assert getattr(secure, f"{cookie}_cookie") == f"__Host-torpor_{cookie}"


@pytest.mark.parametrize("path", ["/", "/a", "/a/b?c=d&e=/f", "/a//b", "/%5C%2F", "/.torpor/room"])
def test_a_path_of_the_same_host_is_an_own_path(path: str) -> None:
    assert is_own_path(path)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "a",
        "//evil.example",
        "/\\evil.example",
        "/a\\b",
        "https://evil.example/",
        "/\t/evil.example",
        "/\n",
        "/\u00e9",
        " /",
    ],
)
def test_a_path_to_another_host_is_not_an_own_path(path: str) -> None:
    assert not is_own_path(path)
