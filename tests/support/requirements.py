"""Skip a test that needs what this machine lacks; where confinement is required, fail instead."""

import os

import pytest

REQUIRED = os.environ.get("TORPOR_REQUIRE_CONFINEMENT") == "1"


def must_have(condition: object, what: str) -> None:
    if not condition:
        if REQUIRED:
            pytest.fail(f"confinement is required, and this machine lacks it: {what}")
        pytest.skip(f"this machine lacks it: {what}")
