"""The templates that Torpor brings, those that an administrator adds, and the programs that they mean."""

from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import pytest
from tests.support.builders import workspace

import torpor
from torpor.domain.errors import Refused
from torpor.domain.image_policy import ANY_IMAGE, NO_IMAGES, ONLY_IMAGES, ImagePolicy
from torpor.inside.notebook import ENVIRONMENT
from torpor.ports import NODE_PACKAGE, PLACEHOLDERS, Program
from torpor.templates.catalogue import Catalogue, load_catalogue, shipped
from torpor.templates.template_file import BRACES, Template

ON_ENGINE = load_catalogue(None, ANY_IMAGE)


def test_the_product_has_five_templates_of_which_one_needs_an_engine() -> None:
    found = ["terminal", "code-server", "command", "image", "jupyterlab"]
    assert list(shipped().templates) == list(ON_ENGINE.available) == found
    assert list(shipped().available) == [name for name in found if name != "image"]


def test_an_engine_installs_no_packages() -> None:
    on_docker = load_catalogue(None, ONLY_IMAGES)
    assert list(on_docker.available) == ["terminal", "command", "image"]
    for image in (None, "python:3.12"):
        with pytest.raises(Refused, match="installs packages") as refused:
            on_docker.program(on_docker.template("jupyterlab"), None, image)
        assert refused.value.code == "packages_not_supported"


def test_templates_are_read_once_and_cannot_be_changed() -> None:
    assert shipped() is shipped()
    with pytest.raises(FrozenInstanceError):
        shipped().template("terminal").name = "other"  # type: ignore[misc]
    with pytest.raises(TypeError):
        shipped().template("terminal").environment["PATH"] = "/"  # type: ignore[index]


def test_terminal_runs_a_file_that_exists() -> None:
    assert shipped().program(shipped().template("terminal"), None) == Program(
        "terminal", ("{python}", "{inside}/terminal.py", "--socket", "{socket}"), {"PYTHONPATH": "{site}"}, ()
    )
    assert (Path(torpor.__file__).parent / "inside" / "terminal.py").is_file()


def test_jupyterlab_is_pinned_and_keeps_its_checks() -> None:
    made = shipped().program(shipped().template("jupyterlab"), None)
    assert [package.split("==")[0] for package in made.packages] == ["jupyterlab", "pip"]
    assert made.environment["JUPYTER_PATH"] == f"{{home}}/{ENVIRONMENT}/share/jupyter"
    assert "--ServerApp.sock={socket}" in made.command
    assert "--ServerApp.sock_mode=0600" in made.command
    assert not [word for word in made.command if "allow_origin" in word or "disable_check_xsrf" in word]


def test_code_server_is_pinned_and_only_torpor_checks_the_access() -> None:
    made = shipped().program(shipped().template("code-server"), None)
    assert [package.split("==")[0] for package in made.packages] == [NODE_PACKAGE]
    assert [package.split("@")[0] for package in made.npm] == ["code-server"]
    assert {"--socket={socket}", "--socket-mode=0600", "--auth=none"} < set(made.command)
    (required,) = (word.partition("{inside}/")[2] for word in made.command if word.startswith("--require="))
    assert (Path(torpor.__file__).parent / "inside" / required).is_file()


def test_a_command_is_run_as_given() -> None:
    given = ("python3", "-c", "print('{port}') # $PORT; a b")
    assert shipped().program(shipped().template("command"), given) == Program("command", given, is_verbatim=True)
    longest = ("é" * 32_767, "xx")
    assert shipped().program(shipped().template("command"), longest).command == longest


@pytest.mark.parametrize("name", ["", "Terminal", "vscode", "../terminal", "terminal.toml"])
def test_an_unknown_template_is_refused_with_what_is_allowed(name: str) -> None:
    with pytest.raises(Refused, match="terminal, code-server, command, jupyterlab") as refused:
        shipped().template(name)
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
        shipped().program(shipped().template(name), command)
    assert refused.value.code == code


@pytest.mark.parametrize("name", ["terminal", "jupyterlab", "code-server"])
def test_an_empty_command_means_no_command(name: str) -> None:
    assert shipped().program(shipped().template(name), ()) == shipped().program(shipped().template(name), None)


@pytest.mark.parametrize("chosen", shipped().templates.values(), ids=lambda chosen: chosen.name)
def test_every_placeholder_is_one_that_runtimes_know(chosen: Template) -> None:
    texts = [*chosen.command, *chosen.image_command, *chosen.environment.values()]
    assert {name for text in texts for name in BRACES.findall(text)} <= set(PLACEHOLDERS)


def test_a_template_without_a_cpu_weight_has_the_default() -> None:
    assert {
        shipped().program(one, ("true",) if one.takes_command else None).cpu_weight for one in shipped().available.values()
    } == {100}


def test_the_refusal_names_the_template_that_takes_a_command() -> None:
    with pytest.raises(Refused, match="choose command"):
        shipped().program(replace(shipped().template("terminal"), name="x"), ("true",))


def test_a_removed_template_keeps_the_own_command_before_a_stop() -> None:
    assert shipped().before_sleep_of(workspace(template="gone", before_sleep=None)) == ()
    assert shipped().before_sleep_of(workspace(template="gone", before_sleep=("true",))) == ("true",)
    assert shipped().counts_cpu("gone")


# ── images ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_template_image_runs_the_terminal_or_the_users_command_in_an_image() -> None:
    image, terminal = ON_ENGINE.template("image"), ON_ENGINE.program(ON_ENGINE.template("terminal"), None)
    assert ON_ENGINE.program(image, None, "python:3") == replace(terminal, template="image", image="docker.io/library/python:3")
    own = ON_ENGINE.program(image, ("sh", "-c", "echo {port}"), "python:3")
    assert own == Program("image", ("sh", "-c", "echo {port}"), is_verbatim=True, image="docker.io/library/python:3")
    assert own.environment == {}, "Torpor's packages are not for the user's Python"


def test_a_template_takes_another_image_than_its_own() -> None:
    terminal = ON_ENGINE.template("terminal")
    assert ON_ENGINE.program(terminal, None).image is None, "the runtime's default"
    assert ON_ENGINE.program(terminal, None, "r.example/a").image == "r.example/a:latest"
    own = replace(terminal, image="r.example/b:2")
    assert ON_ENGINE.program(own, None).image == "r.example/b:2"
    assert ON_ENGINE.program(own, None, "r.example/a").image == "r.example/a:latest"
    assert shipped().program(own, None).image is None, "its command runs without an image, too"


def test_a_workspace_with_an_image_and_without_a_template_has_the_template_image() -> None:
    assert (ON_ENGINE.default_name(None), ON_ENGINE.default_name("python")) == ("terminal", "image")


@pytest.mark.parametrize(
    ("on", "template", "image", "code"),
    [
        (shipped(), "image", "python", "images_not_supported"),
        (shipped(), "terminal", "python", "images_not_supported"),
        (shipped(), "image", None, "images_not_supported"),
        (ON_ENGINE, "image", None, "image_required"),
        (ON_ENGINE, "terminal", "Python", "bad_image"),
        (replace(ON_ENGINE, images=ImagePolicy(True, True, ("r.example/*",))), "image", "python", "image_not_allowed"),
    ],
)
def test_an_image_that_cannot_be_run_is_refused_at_creation_and_at_each_start(
    on: Catalogue, template: str, image: str | None, code: str
) -> None:
    with pytest.raises(Refused) as refused:
        on.program(on.template(template), None, image)
    assert refused.value.code == code
    with pytest.raises(Refused) as refused:
        on.program_of(workspace(template=template, command=(), image=image))
    assert refused.value.code == code


def test_the_image_of_a_template_must_be_allowed_too() -> None:
    on = replace(ON_ENGINE, images=ImagePolicy(True, True, ("r.example/*",)))
    with pytest.raises(Refused, match="image_allowlist"):
        on.program(replace(on.template("terminal"), image="python"), None)


def test_a_command_for_images_replaces_command_and_packages_only_on_an_engine(tmp_path: Path) -> None:
    add(tmp_path, "lab", packages='["lab==1"]', image='"r.example/lab:1"', image_command='["lab", "{port}"]')
    for images, command, packages in ((NO_IMAGES, ("sleep", "9"), ("lab==1",)), (ANY_IMAGE, ("lab", "{port}"), ())):
        found = load_catalogue(tmp_path, images)
        made = found.program(found.template("lab"), None)
        assert (made.command, made.packages) == (command, packages)
        assert not made.is_verbatim


def test_a_template_that_only_has_a_command_for_images_needs_an_engine(tmp_path: Path) -> None:
    path = add(tmp_path, "only", image='"r.example/only:1"', image_command='["serve"]')
    path.write_text(path.read_text().replace('command = ["sleep", "9"]\n', "", 1))
    found = load_catalogue(tmp_path, NO_IMAGES)
    assert "only" not in found.available
    with pytest.raises(Refused, match="cannot run the template 'only': choose another template"):
        found.program(found.template("only"), None)
    assert load_catalogue(tmp_path, ANY_IMAGE).program_of(workspace(template="only", command=())).command == ("serve",)


# ── of an administrator ───────────────────────────────────────────────────────────────────────────────────────────────


def add(folder: Path, name: str, **fields: str) -> Path:
    written = {"name": f'"{name}"', "title": '"Own"', "description": '"My own."', "command": '["sleep", "9"]', **fields}
    path = folder / f"{name}.toml"
    path.write_text("".join(f"{field} = {value}\n" for field, value in written.items()), encoding="utf-8")
    return path


def test_without_a_folder_there_are_the_shipped_ones() -> None:
    assert load_catalogue(None, NO_IMAGES) is shipped()


def test_templates_are_added_and_other_files_are_ignored(tmp_path: Path) -> None:
    add(tmp_path, "own")
    for name in ("README.md", ".hidden.toml", "own.toml~"):
        (tmp_path / name).write_text("not a template")
    found = load_catalogue(tmp_path, NO_IMAGES)
    assert list(found.available) == ["terminal", "code-server", "command", "jupyterlab", "own"]
    assert found.added == {"own"}
    assert found.broken == ()
    assert found.program(found.template("own"), None).command == ("sleep", "9")


def test_a_file_replaces_the_shipped_template_of_its_name(tmp_path: Path) -> None:
    add(tmp_path, "terminal", title='"Ours"')
    found = load_catalogue(tmp_path, NO_IMAGES)
    assert next(iter(found.templates)) == "terminal", "the default stays the first"
    assert found.template("terminal").title == "Ours"


def test_a_broken_file_does_not_stop_the_others(tmp_path: Path) -> None:
    add(tmp_path, "own")
    add(tmp_path, "bad", cpu_wieght="7")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    (tmp_path / "folder.toml").mkdir()
    found = load_catalogue(tmp_path, NO_IMAGES)
    assert "own" in found.templates
    assert {one.name: one.faults for one in found.broken} == {
        "bad": ("bad.toml: cpu_wieght: unknown; did you mean cpu_weight?",),
        "binary": ("binary.toml: not UTF-8 (byte 0); save it as UTF-8",),
        "folder": ("folder.toml: cannot be read: Is a directory",),
    }
    with pytest.raises(Refused, match="did you mean cpu_weight") as refused:
        found.template("bad")
    assert refused.value.code == "unknown_template"


def test_a_broken_file_hides_the_shipped_template_that_it_replaces(tmp_path: Path) -> None:
    add(tmp_path, "jupyterlab", packages='["jupyterlab"]')
    found = load_catalogue(tmp_path, NO_IMAGES)
    assert "jupyterlab" not in found.templates
    with pytest.raises(Refused, match="not pinned"):
        found.program_of(workspace(template="jupyterlab"))


def test_a_folder_that_is_missing_leaves_the_shipped_ones(tmp_path: Path) -> None:
    found = load_catalogue(tmp_path / "none", NO_IMAGES)
    assert list(found.templates) == list(shipped().templates)
    (broken,) = found.broken
    assert str(tmp_path / "none") in broken.faults[0]
    assert "check templates_dir" in broken.faults[0]


def test_a_stored_workspace_whose_template_was_removed_is_told_what_to_do(tmp_path: Path) -> None:
    stored, path = workspace(template="own", command=()), add(tmp_path, "own")
    assert load_catalogue(tmp_path, NO_IMAGES).program_of(stored).command == ("sleep", "9")
    path.unlink()
    with pytest.raises(Refused, match=r"'own' of this workspace no longer exists.*home is kept.*own\.toml") as refused:
        load_catalogue(tmp_path, NO_IMAGES).program_of(stored)
    assert refused.value.code == "unknown_template"


def test_the_refusal_of_a_command_names_own_templates_too(tmp_path: Path) -> None:
    path = add(tmp_path, "own", takes_command="true")
    path.write_text(path.read_text().replace('command = ["sleep", "9"]\n', ""))
    found: Catalogue = load_catalogue(tmp_path, NO_IMAGES)
    with pytest.raises(Refused, match="choose command or own"):
        found.program(found.template("terminal"), ("true",))
