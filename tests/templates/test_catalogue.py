"""A template has the values of its file, and an invalid file is refused."""

from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import pytest
from tests.support.builders import workspace

import torpor
from torpor.domain.before_sleep import chosen_before_sleep
from torpor.domain.errors import Hopeless, Refused
from torpor.ports import PLACEHOLDERS, Program
from torpor.templates.catalogue import (
    BRACES,
    FIELD_MEANS,
    FIELDS,
    Template,
    before_sleep_of,
    load,
    parse,
    program,
    template,
    templates,
)


def test_the_product_has_three_templates() -> None:
    assert list(templates()) == ["terminal", "command", "jupyterlab"]


def test_templates_are_read_once_and_cannot_be_changed() -> None:
    assert templates() is templates()
    with pytest.raises(FrozenInstanceError):
        template("terminal").name = "other"  # type: ignore[misc]
    with pytest.raises(TypeError):
        template("terminal").environment["PATH"] = "/"  # type: ignore[index]


def test_terminal_runs_a_file_that_exists() -> None:
    assert program(template("terminal"), None) == Program(
        "terminal", ("{python}", "{inside}/terminal.py", "--socket", "{socket}"), {"PYTHONPATH": "{site}"}, ()
    )
    assert (Path(torpor.__file__).parent / "inside" / "terminal.py").is_file()


def test_jupyterlab_is_pinned_and_keeps_its_checks() -> None:
    made = program(template("jupyterlab"), None)
    assert [package.split("==")[0] for package in made.packages] == ["jupyterlab"]
    assert "--ServerApp.sock={socket}" in made.command
    assert "--ServerApp.sock_mode=0600" in made.command
    assert not [word for word in made.command if "allow_origin" in word or "disable_check_xsrf" in word]


def test_a_command_is_run_as_given() -> None:
    given = ("python3", "-c", "print('{port}') # $PORT; a b")
    assert program(template("command"), given) == Program("command", given, is_verbatim=True)
    longest = ("é" * 32_767, "xx")
    assert program(template("command"), longest).command == longest


@pytest.mark.parametrize("name", ["", "Terminal", "vscode", "../terminal", "terminal.toml"])
def test_an_unknown_template_is_refused_with_what_is_allowed(name: str) -> None:
    with pytest.raises(Refused, match="terminal, command, jupyterlab") as refused:
        template(name)
    assert refused.value.code == "unknown_template"


@pytest.mark.parametrize(
    ("name", "command", "code"),
    [
        ("terminal", ("true",), "command_not_taken"),
        ("jupyterlab", ("true",), "command_not_taken"),
        ("command", None, "command_required"),
        ("command", (), "command_required"),
        ("command", ("",), "command_invalid"),
        ("command", ("echo", "a\0b"), "command_invalid"),
        ("command", ("x" * 65_537,), "command_invalid"),
        ("command", ("é" * 32_000, "x" * 2_000), "command_invalid"),
        ("command", ("x",) * 65_537, "command_invalid"),
    ],
)
def test_a_command_that_does_not_fit_the_template_is_refused(name: str, command: tuple[str, ...] | None, code: str) -> None:
    with pytest.raises(Refused) as refused:
        program(template(name), command)
    assert refused.value.code == code


@pytest.mark.parametrize("name", ["terminal", "jupyterlab"])
def test_an_empty_command_means_no_command(name: str) -> None:
    assert program(template(name), ()) == program(template(name), None)


@pytest.mark.parametrize("chosen", templates().values(), ids=lambda chosen: chosen.name)
def test_every_placeholder_is_one_that_runtimes_know(chosen: Template) -> None:
    texts = [*chosen.command, *chosen.environment.values()]
    assert {name for text in texts for name in BRACES.findall(text)} <= set(PLACEHOLDERS)


GOOD = {
    "name": '"good"',
    "title": '"Good"',
    "description": '"It is good."',
    "command": '["{python}", "-m", "http.server", "{port}"]',
    "environment": '{ HOME_PAGE = "{inside}/page" }',
    "packages": '["good-thing[extra]==1.2.3"]',
}


def written(fields: dict[str, str]) -> str:
    return "".join(f"{field} = {value}\n" for field, value in fields.items())


def test_a_valid_file_is_read() -> None:
    assert parse("good.toml", written(GOOD)) == Template(
        "good",
        "Good",
        "It is good.",
        ("{python}", "-m", "http.server", "{port}"),
        {"HOME_PAGE": "{inside}/page"},
        ("good-thing[extra]==1.2.3",),
        takes_command=False,
    )


def test_before_sleep_is_read_as_it_is_and_the_workspaces_own_wins() -> None:
    read = parse("good.toml", written({**GOOD, "before_sleep": '["sh", "-c", "echo {home} ${HOME}"]'}))
    assert read.before_sleep == ("sh", "-c", "echo {home} ${HOME}")
    assert parse("good.toml", written({**GOOD, "before_sleep": "[]"})).before_sleep == ()
    assert chosen_before_sleep(None, read.before_sleep) == read.before_sleep
    assert chosen_before_sleep(("true",), read.before_sleep) == ("true",)
    assert chosen_before_sleep((), read.before_sleep) == (), "an empty one switches it off"
    assert before_sleep_of(workspace(template="gone", before_sleep=None)) == ()
    assert before_sleep_of(workspace(template="gone", before_sleep=("true",))) == ("true",)


def test_every_field_is_described() -> None:
    assert FIELD_MEANS.keys() == FIELDS.keys()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", None),
        ("name", '"Good"'),
        ("name", '"good--name"'),
        ("name", '"other"'),
        ("name", "7"),
        ("title", None),
        ("title", '""'),
        ("description", None),
        ("description", '"two\\nlines"'),
        ("command", None),
        ("command", "[]"),
        ("command", '"good --port {port}"'),
        ("command", '["good", 8080]'),
        ("command", '["good", "{prot}"]'),
        ("environment", '["A=B"]'),
        ("environment", "{ A = 1 }"),
        ("environment", '{ "A-B" = "1" }'),
        ("environment", '{ A = "{house}" }'),
        ("packages", '"good==1"'),
        ("packages", '["good"]'),
        ("packages", '["good>=1"]'),
        ("takes_command", '"yes"'),
        ("cpu_weight", "0"),
        ("cpu_weight", "10001"),
        ("cpu_weight", "1.5"),
        ("cpu_weight", "true"),
        ("comand", '["good"]'),
        ("before_sleep", '"git stash"'),
        ("before_sleep", '["", "stash"]'),
        ("before_sleep", '["git", 7]'),
        ("before_sleep", '["git", "\\u0000"]'),
        ("before_sleep", f'["{"x" * 4097}"]'),
    ],
)
def test_a_broken_file_is_an_error_that_names_file_and_field(field: str, value: str | None) -> None:
    fields = {key: text for key, text in GOOD.items() if key != field} | ({field: value} if value is not None else {})
    with pytest.raises(Hopeless, match=rf"^good\.toml: {field}: "):
        parse("good.toml", written(fields))


@pytest.mark.parametrize("weight", [1, 100, 10_000])
def test_a_program_has_the_cpu_weight_of_its_template(weight: int) -> None:
    heavy = parse("good.toml", written({**GOOD, "cpu_weight": str(weight)}))
    assert program(heavy, None).cpu_weight == weight


def test_a_template_without_a_cpu_weight_has_the_default() -> None:
    assert {program(one, ("true",) if one.takes_command else None).cpu_weight for one in templates().values()} == {100}


def test_a_command_together_with_takes_command_is_an_error() -> None:
    with pytest.raises(Hopeless, match=r"^good\.toml: command: not allowed with takes_command"):
        parse("good.toml", written({**GOOD, "takes_command": "true"}))


def test_an_invalid_toml_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("name = ", encoding="utf-8")
    with pytest.raises(Hopeless, match=r"^bad\.toml: not TOML"):
        load(tmp_path)


def test_the_refusal_names_the_template_that_takes_a_command() -> None:
    with pytest.raises(Refused, match="choose command"):
        program(replace(template("terminal"), name="x"), ("true",))
