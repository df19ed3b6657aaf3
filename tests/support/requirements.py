"""Skip a test that needs a program or a right that this machine lacks; where confinement is required, fail instead."""

import os

import pytest

REQUIRED = os.environ.get("TORPOR_REQUIRE_CONFINEMENT") == "1"


def must_have(condition: object, what: str) -> None:
    if not condition:
        if REQUIRED:
            pytest.fail(f"TORPOR_REQUIRE_CONFINEMENT is set, and this machine lacks: {what}")
        pytest.skip(f"this machine lacks: {what}")
