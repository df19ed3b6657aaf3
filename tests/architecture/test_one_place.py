"""Do the things that are said in one place cover everything that refers to them?"""

import re
from dataclasses import fields
from pathlib import Path

import torpor
from torpor.api.openapi import REFUSES
from torpor.api.refusals import STATUS_OF
from torpor.api.route_access import RULES
from torpor.domain.audit import AuditAction
from torpor.ports import PLACEHOLDERS
from torpor.runtimes.placeholders import Placeholders

SOURCE = Path(torpor.__file__).parent
# Said by `torpor up` and the front before there is an API, or by the command line itself.
NOT_OVER_HTTP = {
    "admin_exists",
    "another_archive_store",
    "another_runtime",
    "another_secret_key",
    "archives_missing",
    "homes_not_moved",
    "archives_lost",
    "bad_role",
    "name_in_use",
    "no_isolation",
    "schema_is_old",
    "already_controlled",
    "already_up",
    "bad_archive_url",
    "bad_credentials_file",
    "bad_data",
    "bad_database",
    "bad_redis",
    "bad_setting",
    "port_in_use",
    "port_not_allowed",
    "wrong_workspace",
    "secret_unreadable",
}


def codes_refused() -> set[str]:
    found = set()
    for path in SOURCE.rglob("*.py"):
        # The sort has its own errors, and no HTTP.
        if path.parts[len(SOURCE.parts)] not in ("cli", "inside", "sort"):
            found |= set(re.findall(r'Refused\(\s*"([a-z_]+)"', path.read_text(encoding="utf-8")))
    return found


def test_every_refusal_has_its_status() -> None:
    assert codes_refused() - NOT_OVER_HTTP <= STATUS_OF.keys()
    assert not NOT_OVER_HTTP & STATUS_OF.keys()


def test_every_described_refusal_belongs_to_a_call_and_has_a_status() -> None:
    assert REFUSES.keys() <= RULES.keys()
    assert {code for codes in REFUSES.values() for code in codes} <= STATUS_OF.keys()


def test_every_audited_action_is_an_audit_action() -> None:
    """People are audited in words of one list, which is what readers of the log are told."""
    said = set()
    for path in SOURCE.rglob("*.py"):
        said |= set(re.findall(r'(?:\bentry|\bEntry|\b_end)\([^)]*?"([a-z]+\.[a-z]+)"', path.read_text(encoding="utf-8")))
    assert {"session.begin", "token.create", "user.change"} <= said <= set(AuditAction)


def test_the_process_runtime_fills_every_placeholder() -> None:
    assert {field.name for field in fields(Placeholders)} == PLACEHOLDERS.keys()


def test_every_module_begins_with_a_docstring() -> None:
    silent = [
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if path.stat().st_size and not path.read_text(encoding="utf-8").startswith('"""')
    ]
    assert silent == []


def test_only_settings_the_wiring_and_the_commands_read_the_environment() -> None:
    allowed = {"assemble", "cli", "inside", "runtimes", "store", "archives", "system_packages.py"}
    readers = {
        path.relative_to(SOURCE).parts[0]
        for path in SOURCE.rglob("*.py")
        if re.search(r"os\.environ|os\.getenv", path.read_text(encoding="utf-8"))
    }
    assert readers <= allowed
