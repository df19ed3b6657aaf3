"""Which browser do the tests drive, and how?"""

import contextlib
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import BrowserContext, async_playwright

ARTIFACTS = Path(__file__).parents[1] / "artifacts"
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
    """Where it is; without one the test is skipped, but not in CI."""
    found = shutil.which("chromium")
    if found is None and os.environ.get("CI"):
        pytest.fail("CI must have a chromium: these tests are not to be skipped there")
    if found is None:
        pytest.skip("there is no chromium on this machine")
    return found


@contextlib.asynccontextmanager
async def chromium(profile: Path, **context: Any) -> AsyncIterator[BrowserContext]:
    """A real browser with a profile of its own, gone at the end."""
    executable = find_chromium()
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch_persistent_context(
            profile, executable_path=executable, args=FLAGS, **context
        )
        yield browser
        await browser.close()
