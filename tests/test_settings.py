"""Which word counts, and is a wrong one refused with what is allowed?"""

from pathlib import Path
from typing import Any

import pytest

from torpor.domain.errors import Refused
from torpor.domain.knobs import TIMEOUTS_S, Knobs
from torpor.settings import PREFIX, SECRET, find_toml, load

HOME = {"HOME": "/home/ada"}


def test_without_a_word_the_defaults_count() -> None:
    settings = load(HOME)
    assert settings.data == Path("/home/ada/.local/share/torpor")
    assert settings.port == 8080
    assert settings.archives_at == "file:///home/ada/.local/share/torpor/archives"
    assert dict(settings.knobs.timeouts_s) == dict(TIMEOUTS_S)
    assert settings.knobs.max_retries == Knobs().max_retries
    assert settings.knobs.retry_base_s == Knobs().retry_base_s


def test_the_command_line_counts_before_the_environment_before_the_file() -> None:
    toml = (Path("torpor.toml"), "port = 1\nmax_running_per_user = 3\nlog_format = 'json'")
    settings = load({**HOME, "TORPOR_PORT": "2", "TORPOR_MAX_RUNNING_PER_USER": "4"}, toml=toml, overrides={"port": 5})
    assert (settings.port, settings.max_running_per_user, settings.log_format) == (5, 4, "json")


@pytest.mark.parametrize(
    "said",
    [
        {"environ": {**HOME, "TORPOR_UNCONFINED": "true"}},
        {"environ": {**HOME, "TORPOR_UNCONFINED": "yes"}},
        {"environ": HOME, "toml": (Path("torpor.toml"), "unconfined = true")},
        {"environ": HOME, "overrides": {"unconfined": True}},
    ],
)
def test_missing_confinement_is_accepted_only_when_that_is_said(said: dict[str, Any]) -> None:
    assert not load(HOME).unconfined
    assert load(**said).unconfined


def test_an_empty_word_is_no_word() -> None:
    assert load({**HOME, "TORPOR_PORT": ""}, overrides={"port": None}).port == 8080


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({"TORPOR_PORT": "99999"}, ("TORPOR_PORT", "99999", "65535")),
        ({"TORPOR_PORT": "eighty"}, ("TORPOR_PORT", "eighty", "integer")),
        ({"TORPOR_RUNTIME": "kubernetes"}, ("TORPOR_RUNTIME", "kubernetes", "process")),
        ({"TORPOR_RECONCILER_INTERVAL": "0"}, ("TORPOR_RECONCILER_INTERVAL", "greater than 0")),
    ],
)
def test_a_wrong_word_is_refused_with_its_name_and_what_is_allowed(environ: dict[str, str], says: tuple[str, ...]) -> None:
    with pytest.raises(Refused) as refused:
        load({**HOME, **environ})
    assert refused.value.code == "bad_setting"
    assert all(word in refused.value.message for word in says)


@pytest.mark.parametrize(
    ("text", "says"),
    [("port = [", "not valid TOML"), ("prot = 1", "prot"), ("port = 'x'", "port in torpor.toml")],
)
def test_a_broken_file_is_refused(text: str, says: str) -> None:
    with pytest.raises(Refused, match=says):
        load(HOME, toml=(Path("torpor.toml"), text))


def test_a_secret_is_never_printed() -> None:
    settings = load({**HOME, "TORPOR_DATABASE_URL": "postgresql://ada:hunter2@db/torpor"})
    assert "hunter2" not in repr(settings)
    assert "hunter2" not in str(settings.model_dump())
    assert {"database_url", "redis_url", "archive_url", "oidc_client_secret"} == SECRET


def test_the_file_is_the_named_one_or_that_in_the_folder(tmp_path: Path) -> None:
    assert find_toml({}, tmp_path) is None
    (tmp_path / "torpor.toml").write_text("port = 1")
    assert find_toml({}, tmp_path) == (tmp_path / "torpor.toml", "port = 1")
    with pytest.raises(Refused, match="no such file"):
        find_toml({f"{PREFIX}CONFIG": str(tmp_path / "missing.toml")}, tmp_path)
