"""Run the commands of documents as a reader pastes them, and check what they print.

    python tools/tour.py README.md
    python tools/tour.py docs/tutorial/1-workspace.md docs/tutorial/2-sort.md

Takes every ```console and ```bash block between `<!-- tour:begin -->` and `<!-- tour:end -->`, and runs their lines in one
bash for all documents, which stops at the first failure. In a console block only the lines after `$ ` are run.
A comment `# prints: TEXT` below a command is checked: one line that the command printed must contain TEXT, in which `...`
matches anything.
"""

import re
import secrets
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

TIMEOUT_S = 600


@dataclass
class Command:
    """A command on one or several lines, and what it must print."""

    text: str
    prints: list[str] = field(default_factory=list)


def tour_of(document: str) -> list[Command]:
    commands: list[Command] = []
    parts = re.findall(r"<!-- tour:begin -->(.*?)<!-- tour:end -->", document, re.DOTALL)
    for language, block in re.findall(r"```(console|bash)\n(.*?)```", "\n".join(parts), re.DOTALL):
        lines = block.splitlines() if language == "bash" else typed_lines(block)
        commands += commands_of(lines)
    return commands


def typed_lines(block: str) -> list[str]:
    """The input lines of a console block: those after a prompt, and those that continue a line with a backslash at its end."""
    typed: list[str] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            typed.append(line[2:])
        elif line.startswith("# prints:") or (typed and typed[-1].endswith("\\")):
            typed.append(line.removeprefix("> "))
    return typed


def commands_of(lines: list[str]) -> list[Command]:
    commands: list[Command] = []
    pending = ""
    for line in lines:
        if expected := re.match(r"\s*# prints: ?(.*)", line):
            if not commands or pending:
                raise SystemExit(f"`# prints:` must follow a complete command: {line}")
            commands[-1].prints.append(expected[1].strip())
            continue
        pending = f"{pending}\n{line}" if pending else line
        if not pending.strip() or pending.lstrip().startswith("#"):
            pending = ""
        elif is_complete(pending):
            commands.append(Command(pending))
            pending = ""
    if pending:
        raise SystemExit(f"an unfinished command at the end of a block: {pending}")
    return commands


def is_complete(text: str) -> bool:
    """Whether bash would run this now, or wait for more lines (a quote, a here document, a loop)."""
    if text.endswith("\\"):
        return False
    parsed = subprocess.run(["bash", "-n", "-c", text], capture_output=True, text=True, check=False)
    return parsed.returncode == 0 and "here-document" not in parsed.stderr


def matches(expected: str, output: str) -> bool:
    pattern = ".*".join(re.escape(part) for part in expected.split("..."))
    return any(re.search(pattern, line) for line in output.splitlines())


def script_of(commands: list[Command], mark: str) -> str:
    """One bash script for all commands, so that variables and `cd` last; the mark separates their outputs."""
    steps = [f"printf '%s\\n' '{mark} {number}'\n{command.text}" for number, command in enumerate(commands)]
    return "\n".join(["set -e", *steps, f"printf '%s\\n' '{mark} end'", ""])


def main(paths: list[str]) -> int:
    commands: list[Command] = []
    for path in paths:
        tour = tour_of(Path(path).read_text(encoding="utf-8"))
        if not tour:
            print(f"tour: {path} has no commands between <!-- tour:begin --> and <!-- tour:end -->")
            return 1
        commands += tour
    mark = f"tour-{secrets.token_hex(8)}"
    bash = subprocess.Popen(
        ["bash", "-c", script_of(commands, mark)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    assert bash.stdout
    outputs: list[str] = []
    finished = False
    for line in bash.stdout:
        # The last output of a command may lack a newline.
        before, found, after = line.partition(mark)
        if outputs and before:
            outputs[-1] += before
            print(before, end="" if before.endswith("\n") else "\n", flush=True)
        if found:
            finished = after.strip() == "end"
            if not finished:
                outputs.append("")
                print("$ " + commands[int(after)].text.replace("\n", "\n> "), flush=True)
    code = bash.wait(TIMEOUT_S)
    if code != 0 or not finished:
        print(f"tour: FAILED with exit code {code} at: {commands[len(outputs) - 1].text}")
        return 1
    wrong = [
        f"tour: FAILED: `{command.text}` did not print: {expected}"
        for command, output in zip(commands, outputs, strict=True)
        for expected in command.prints
        if not matches(expected, output)
    ]
    print("\n".join(wrong) or f"tour: {len(commands)} commands, {sum(len(c.prints) for c in commands)} outputs as written")
    return 1 if wrong else 0


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit("usage: tour.py DOCUMENT...")
    sys.exit(main(sys.argv[1:]))
