"""Completion offers the words that can come next, and prints no errors."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Torpor
from tests.cli.records import workspace
from tests.support.scripted_api import TOKEN, ScriptedApi, ScriptedResponse
from torpor.cli.command_table import COMMANDS
from torpor.cli.commands.completion import SCRIPTS, CompletionShell
from torpor.domain.access import Scope
from torpor.domain.states import Phase


@pytest.fixture
def names(api: ScriptedApi) -> ScriptedApi:
    items = [workspace(name="demo"), workspace(name="desk", phase="STANDBY"), workspace(name="other")]
    api.answer("GET /workspaces", {"items": items, "next_cursor": None})
    return api


def offered(torpor: Torpor, *words: str) -> list[str]:
    ended = torpor("__complete", *words)
    assert (ended.code, ended.said) == (0, "")
    return [line.partition("\t")[0] for line in ended.text.splitlines()]


def test_commands_are_offered_with_their_descriptions(torpor: Torpor) -> None:
    assert sorted(offered(torpor, "")) == sorted(COMMANDS)
    assert offered(torpor, "arch") == ["archive", "archives"]
    assert torpor("__complete", "und").text == "undelete\tRestore a deleted workspace, as archived.\n"
    assert offered(torpor, "users", "c") == ["create", "change"]
    assert offered(torpor, "nosuch", "") == offered(torpor, "")


def test_names_of_workspaces_are_offered(torpor: Torpor, names: ScriptedApi) -> None:
    assert torpor("__complete", "show", "de").text == "demo\tRunning\ndesk\tStopped\n"
    assert offered(torpor, "show", "") == ["demo", "desk", "other"]
    assert offered(torpor, "show", "--json", "o") == ["other"]
    assert offered(torpor, "events", "o") == ["other"]
    assert offered(torpor, "audit", "--workspace", "o") == ["other"]
    assert {asked.token for asked in names.asked} == {TOKEN}


def test_no_names_are_offered_for_new_workspaces_or_after_the_first_name(torpor: Torpor, names: ScriptedApi) -> None:
    assert offered(torpor, "show", "demo", "") == []
    assert offered(torpor, "create", "") == []
    assert offered(torpor, "exec", "demo", "--", "d") == []
    assert names.asked == []


def test_options_and_their_values_are_offered(torpor: Torpor) -> None:
    assert offered(torpor, "list", "--") == ["--phase", "--json", "--help"]
    assert offered(torpor, "list", "--phase", "") == list(Phase)
    assert offered(torpor, "list", "--phase", "st") == ["STANDBY"]
    assert offered(torpor, "list", "--phase=st") == ["--phase=STANDBY"]
    # As bash splits it.
    assert offered(torpor, "list", "--phase", "=", "st") == ["STANDBY"]
    assert offered(torpor, "list", "--phase", "=") == list(Phase)
    assert offered(torpor, "tokens", "create", "x", "--scope", "") == list(Scope)
    assert offered(torpor, "completion", "") == list(CompletionShell)
    assert offered(torpor, "exec", "demo", "--", "--js") == []


def test_errors_give_no_completions(torpor: Torpor, api: ScriptedApi, monkeypatch: pytest.MonkeyPatch) -> None:
    assert offered(torpor, "show", "") == []
    api.answer("GET /workspaces", ScriptedResponse(200, b"<html>", "text/html"))
    assert offered(torpor, "show", "") == []
    monkeypatch.setenv("TORPOR_URL", "http://127.0.0.1:1")
    assert offered(torpor, "show", "") == []
    monkeypatch.setenv("TORPOR_PORT", "many")
    assert offered(torpor, "show", "") == []
    assert offered(torpor) == offered(torpor, "")


def test_names_with_shell_syntax_are_not_offered(torpor: Torpor, api: ScriptedApi) -> None:
    evil = [workspace(name=name) for name in ("$(reboot)", "a b", "`x`", "--x;y", "a\nb", "'", "fine")]
    api.answer("GET /workspaces", {"items": evil, "next_cursor": None})
    assert offered(torpor, "show", "") == ["fine"]


# The result of the script in each shell, with the cursor after `torpor show de`.
ASK = {
    CompletionShell.BASH: """
        eval "$(torpor completion bash)"
        COMP_WORDS=(torpor show de); COMP_CWORD=2
        _torpor; printf '%s\\n' "${COMPREPLY[@]}"
        COMP_WORDS=(torpor list --phase = st); COMP_CWORD=4
        _torpor; printf '%s\\n' "${COMPREPLY[@]}"
        complete -p torpor > /dev/null && echo registered
    """,
    CompletionShell.FISH: "torpor completion fish | source; complete -C 'torpor show de' | string split -f1 \\t",
}


@pytest.mark.parametrize("shell", [shell for shell in ASK if shutil.which(shell)])
@pytest.mark.usefixtures("names", "data")
def test_a_real_shell_completes(shell: CompletionShell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = tmp_path / "torpor"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m torpor "$@"\n')
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    done = subprocess.run([shell, "-c", ASK[shell]], capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    assert done.stdout.split()[:2] == ["demo", "desk"]
    if shell is CompletionShell.BASH:
        assert done.stdout.split()[2:] == ["STANDBY", "registered"]


def test_every_shell_has_its_script(torpor: Torpor) -> None:
    for shell in CompletionShell:
        assert torpor("completion", shell).text == SCRIPTS[shell]
        assert "torpor" in SCRIPTS[shell]
    assert torpor("completion", "tcsh").code == 2
