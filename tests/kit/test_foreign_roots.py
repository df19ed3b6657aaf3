"""The agent and the archive job run from the kit in roots that have nothing else."""

import asyncio
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.archives.s3 import S3
from tests.support.archive_jobs import HOME, KEY
from tests.support.foreign_root import UID, ForeignRoot, foreign_root
from tests.support.requirements import must_have
from tests.support.waiting import until
from torpor.archives.archives import HomeArchives
from torpor.archives.tree import tree_root
from torpor.inside.program import AgentOptions
from torpor.kit import elf, layout
from torpor.kit.manifest import Kit
from torpor.ports import Address, HomeJob
from torpor.runtimes import agent_client

BUSYBOX = Path("/bin/busybox")
MUSL = Path(f"/lib/ld-musl-{platform.machine()}.so.1")
PORT = 7007
STOP_TIMEOUT_S = 20.0
PROGRAM = f"""
import socket
with socket.create_server(("127.0.0.1", {PORT})) as server:
    while True:
        server.accept()[0].close()
"""
NEEDS = "import asyncio, ctypes, ssl, obstore, torpor.archives.job, torpor.inside.agent, torpor.inside.terminal"

MAPPED = f"""
{NEEDS}
ssl.create_default_context()
print(*sorted({{line.split()[-1] for line in open("/proc/self/maps") if "/" in line}}), sep="\\n")
"""


def is_static(program: Path) -> bool:
    return program.is_file() and elf.parse(program.read_bytes()).interpreter is None


@pytest.fixture
def bare(folder: Path, kit: Kit) -> ForeignRoot:
    """No shell, no C library, no /etc."""
    return foreign_root(folder, kit.path)


@pytest.fixture
def with_busybox(bare: ForeignRoot) -> ForeignRoot:
    must_have(is_static(BUSYBOX), "a static busybox (Debian's package busybox-static)")
    bare.add(BUSYBOX, "/bin/busybox")
    (bare.path / "bin" / "sh").symlink_to("busybox")
    return bare


@pytest.fixture
def with_musl(with_busybox: ForeignRoot) -> ForeignRoot:
    """As in Alpine: the C library is musl, and it is in the folders where a loader looks."""
    must_have(MUSL.exists(), "musl (Debian's package musl)")
    with_busybox.add(MUSL, str(MUSL))
    for name in ("libc.so", "libc.so.6", f"libc.musl-{platform.machine()}.so.1"):
        with_busybox.add(MUSL, f"/lib/{name}")
        with_busybox.add(MUSL, f"/usr/lib/{name}")
    return with_busybox


@pytest.fixture
def with_other_libraries(bare: ForeignRoot, kit: Kit) -> ForeignRoot:
    """Each library of the kit also exists in the image, in a version that cannot be loaded; so do those that find users."""
    bare.path.joinpath("etc").mkdir()
    bare.path.joinpath("etc", "nsswitch.conf").write_text("passwd: sss systemd files\nhosts: resolve files dns\n")
    own = [library.name for library in (kit.path / layout.LIBRARIES).glob("*.so*")]
    for name in (*own, "libnss_sss.so.2", "libnss_systemd.so.2", "libnss_resolve.so.2"):
        for folder in ("lib", "lib64", "usr/lib", "usr/lib64", f"lib/{platform.machine()}-linux-gnu"):
            place = bare.path / folder / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(b"another version")
    return bare


@pytest.fixture(params=["bare", "with_busybox", "with_musl", "with_other_libraries"])
def any_root(request: pytest.FixtureRequest) -> ForeignRoot:
    root: ForeignRoot = request.getfixturevalue(request.param)
    return root


# ── the interpreter ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_it_loads_only_files_of_the_kit(any_root: ForeignRoot) -> None:
    mapped = any_root.python(MAPPED).splitlines()
    assert len(mapped) > 20
    assert [path for path in mapped if not path.startswith(f"{layout.MOUNT}/")] == []


def test_it_runs_as_a_user_without_an_entry_in_a_read_only_root(any_root: ForeignRoot) -> None:
    said = any_root.python("""
import errno, os, pwd, sys
print(os.getuid(), os.getgid(), os.readlink("/proc/self/exe"), sys.executable)
try:
    pwd.getpwuid(os.getuid())
except KeyError:
    print("no entry")
try:
    open("/new", "w")
except OSError as error:
    print(errno.errorcode[error.errno])
""")
    path = f"{layout.MOUNT}/bin/python3"
    assert said.splitlines() == [f"{UID} {UID} {path} {path}", "no entry", "EROFS"]


def test_it_is_the_interpreter_of_this_machine(bare: ForeignRoot) -> None:
    assert bare.python("import sys; print(sys.version)").strip() == sys.version


def test_it_imports_nothing_from_the_image_or_the_environment(bare: ForeignRoot) -> None:
    (bare.work / "json.py").write_text("raise SystemExit('imported from the image')")
    environment = {"PYTHONPATH": "/data", "PYTHONHOME": "/data", "PYTHONSTARTUP": "/data/json.py"}
    program = "import json, sys; print(*sys.path, sep='\\n')"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    folders = [f"lib/{version}", f"lib/{version}/lib-dynload", "site"]
    assert bare.python(program, environment=environment).split() == [f"{layout.MOUNT}/{folder}" for folder in folders]


OPENSSL_MODULE = """
openssl_conf = init
[init]
providers = providers
[providers]
other = other
[other]
module = /lib/libc.so
activate = 1
"""


@pytest.mark.parametrize(("name", "value"), [("LD_PRELOAD", "/lib/libc.so"), ("OPENSSL_CONF", "/data/openssl.cnf")])
def test_variables_for_the_images_own_programs_do_no_harm(with_musl: ForeignRoot, name: str, value: str) -> None:
    """Images preload an allocator, and configure OpenSSL."""
    (with_musl.work / "openssl.cnf").write_text(OPENSSL_MODULE)
    images_own = {name: value, "LD_LIBRARY_PATH": "/lib:/usr/lib"}
    mapped = with_musl.python(MAPPED, environment={**images_own, **layout.environment()}).splitlines()
    assert [path for path in mapped if not path.startswith(f"{layout.MOUNT}/")] == []
    harmed = with_musl.run([*layout.python_argv(), "-c", MAPPED], environment=images_own)
    assert harmed.returncode != 0


def test_every_imported_module_is_compiled(bare: ForeignRoot) -> None:
    program = f"""
import os, sys
{NEEDS}
for name, module in sys.modules.items():
    spec = getattr(module, "__spec__", None)
    if spec is not None and spec.has_location and spec.origin != "frozen":
        path = spec.cached or spec.origin
        print(name, path.endswith((".pyc", ".so")) and os.path.exists(path))
"""
    said = dict(line.split() for line in bare.python(program).splitlines())
    assert {"asyncio", "obstore", "torpor.archives.job"} <= said.keys()
    assert [name for name, is_compiled in said.items() if is_compiled != "True"] == []


# ── the agent ─────────────────────────────────────────────────────────────────────────────────────────────────────────


SERVER = (*layout.python_argv(), "-c", PROGRAM)


@contextmanager
def running_agent(
    root: ForeignRoot, folder: Path, command: tuple[str, ...] = SERVER, *, program_socket: str = ""
) -> Iterator["subprocess.Popen[bytes]"]:
    """The agent with its sockets in this folder, started as a runtime does."""
    names = ("bridge", "ports", "control")
    sockets = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in names]
    for name, one in zip(names, sockets, strict=True):
        one.bind(str(folder / name))
        one.listen()
    bridge, ports, control = (one.fileno() for one in sockets)
    orders = AgentOptions(
        bridge_fd=bridge,
        ports_fd=ports,
        control_fd=control,
        port=PORT,
        socket=program_socket,
        home="/data",
        command=command,
        environment={"HOME": "/data", "WHO": "a user"},
        user=None,
        alone=True,
        own_network=True,
        limits={},
    )
    argv = root.argv([*layout.python_argv(), f"{layout.MOUNT}/{layout.INSIDE}/start.py"], layout.environment())
    argv.insert(1, "--unshare-net")
    agent = subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=(bridge, ports, control),
    )
    for one in sockets:
        one.close()
    with agent:
        assert agent.stdin is not None
        agent.stdin.write(orders.line())
        agent.stdin.flush()
        try:
            yield agent
        finally:
            agent.kill()


@pytest.mark.anyio
async def test_the_agent_runs_commands_and_ends_in_order(any_root: ForeignRoot, tmp_path: Path) -> None:
    control = Address(unix_path=str(tmp_path / "control"))
    with running_agent(any_root, tmp_path) as agent:
        assert agent.stdin is not None
        await until(lambda: agent_client.port_answers(control, 5), otherwise=lambda: f"exit code {agent.poll()}")
        program = "import os, sys; print(os.getuid(), os.environ['WHO'], sys.stdin.read()); sys.exit(3)"
        ended = await agent_client.execute(control, [*layout.python_argv(), "-c", program], b"typed", most_bytes=1000)
        assert (ended.exit_code, ended.stdout, ended.stderr) == (3, f"{UID} a user typed\n".encode(), b"")
        agent.stdin.write(b"stop 10\n")
        agent.stdin.flush()
        # The program does not handle SIGTERM, so the signal ends it.
        assert await asyncio.to_thread(agent.wait, STOP_TIMEOUT_S) == 128 + 15
        assert agent.stdout is not None
        assert agent.stdout.read() == b""


@pytest.mark.anyio
async def test_the_agent_runs_programs_of_the_image(with_busybox: ForeignRoot, tmp_path: Path) -> None:
    control = Address(unix_path=str(tmp_path / "control"))
    with running_agent(with_busybox, tmp_path):
        await until(lambda: agent_client.port_answers(control, 5))
        shell = ["/bin/sh", "-c", "echo $HOME; exec /bin/busybox id -u"]
        ended = await agent_client.execute(control, shell, b"", most_bytes=1000)
        assert (ended.exit_code, ended.stdout) == (0, f"/data\n{UID}\n".encode())


@pytest.mark.anyio
async def test_the_terminal_of_the_kit_serves_its_page(with_busybox: ForeignRoot, tmp_path: Path) -> None:
    terminal = (*layout.python_argv(), f"{layout.MOUNT}/{layout.INSIDE}/terminal.py", "--socket", "/data/socket")
    with running_agent(with_busybox, tmp_path, terminal, program_socket="/data/socket"):
        await until(lambda: agent_client.port_answers(Address(unix_path=str(tmp_path / "control")), 5))
        reader, writer = await asyncio.open_unix_connection(tmp_path / "bridge")
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        said = await asyncio.wait_for(reader.read(), STOP_TIMEOUT_S)
        writer.close()
    assert said.startswith(b"HTTP/1.1 200")
    assert b"xterm" in said


# ── the archive job ───────────────────────────────────────────────────────────────────────────────────────────────────


def make_home(folder: Path) -> Path:
    home = folder / "home"
    (home / "deep" / "deeper").mkdir(parents=True)
    (home / "notes.txt").write_text("hello\n")
    (home / "deep" / "random").write_bytes(os.urandom(300_000))
    (home / "deep" / "deeper" / "script").write_text("#!/bin/sh\n")
    (home / "deep" / "deeper" / "script").chmod(0o755)
    (home / "link").symlink_to("deep/deeper")
    return home


def give(*paths: Path) -> None:
    """To the user who runs the job."""
    if os.getuid() == 0:
        for path in paths:
            for one in (path, *path.rglob("*")):
                os.chown(one, UID, UID, follow_symlinks=False)


def run_job(root: ForeignRoot, job: HomeJob, home: str) -> dict[str, object]:
    ended = root.run([*job.argv, home], stdin=job.stdin)
    assert ended.returncode == 0, (ended.stdout, ended.stderr.decode())
    assert ended.stderr == b""
    result: dict[str, object] = json.loads(ended.stdout.splitlines()[-1])["result"]
    return result


@pytest.mark.parametrize("archive_format", [1, 2])
def test_a_home_is_packed_and_unpacked(any_root: ForeignRoot, archive_format: int) -> None:
    home = make_home(any_root.work)
    store, again = any_root.work / "store", any_root.work / "again"
    store.mkdir(mode=0o700)
    again.mkdir()
    give(home, store, again)
    archives = HomeArchives("file:///data/store", python=layout.python_argv())
    packed = run_job(any_root, archives.pack_job(KEY, HOME, 7, format=archive_format), "/data/home")
    unpacked = run_job(any_root, archives.unpack_job(KEY), "/data/again")
    assert packed["manifest_root"] == unpacked["manifest_root"]
    assert tree_root(home) == tree_root(again)
    assert packed["manifest_root"] == tree_root(home) or archive_format == 2
    assert packed["files"] == 3


UPLOAD = """
import obstore, sys
from obstore.store import S3Store
store = S3Store("bucket", config={config!r}, client_options={{"allow_http": True}}, retry_config={{"max_retries": 0}})
obstore.put(store, "name", b"content", use_multipart=False, mode="create")
"""


def test_the_certificates_of_the_kit_are_enough_for_a_store_on_the_network(bare: ForeignRoot) -> None:
    with S3() as s3:
        config = {name: value for name, value in s3.options.items() if name != "allow_http"}
        program = UPLOAD.format(config=config)
        bare.python(program)
        assert list(s3.contents.values()) == [b"content"]
        # So the certificates do matter: without them the client does not even start.
        without = bare.run([*layout.python_argv(), "-c", program], environment={})
        assert b"certificate" in without.stderr.lower()


def test_the_job_says_what_is_wrong_with_a_store(bare: ForeignRoot) -> None:
    home = make_home(bare.work)
    give(home)
    job = HomeArchives("file:///nowhere", python=layout.python_argv()).pack_job(KEY, HOME, 7)
    ended = bare.run([*job.argv, "/data/home"], stdin=job.stdin)
    assert ended.returncode == 1
    assert json.loads(ended.stdout.splitlines()[-1])["error"]["code"] == "S3_ACCESS_ERROR"


def test_a_kit_that_was_copied_is_the_same(tmp_path: Path, kit: Kit) -> None:
    """An engine gets a copy. Its interpreter runs in any folder, too, through the kit's loader."""
    copy = shutil.copytree(kit.path, tmp_path / "copy")
    argv = [*layout.python_argv_anywhere(copy, kit.manifest.loader), "-c", f"{NEEDS}; print(obstore.__file__)"]
    ended = subprocess.run(argv, capture_output=True, timeout=60, check=False, env={})
    assert (ended.stdout.decode().strip(), ended.stderr) == (str(copy / "site/obstore/__init__.pyc"), b"")
