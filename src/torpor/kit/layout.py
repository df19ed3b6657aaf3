"""Name the files of a kit, and the command that starts its interpreter: the only place that knows both.

bin/python3          the interpreter; can be executed directly where the kit is mounted at MOUNT
bin/python3._pth     the only folders that it imports from
lib/                 the loader, shared libraries and the standard library
site/                torpor and the packages that it needs
certificates.pem     CA certificates
kit.json             the manifest
"""

from pathlib import Path, PurePath

MOUNT = PurePath("/opt/torpor")
"""Where the kit is in every container: the kernel finds a program's loader by an absolute path."""

PYTHON = "bin/python3"
SEARCH_PATH = "bin/python3._pth"
LIBRARIES = "lib"
SITE = "site"
INSIDE = f"{SITE}/torpor/inside"
CERTIFICATES = "certificates.pem"
MANIFEST = "kit.json"

# Isolated, without the image's settings and packages; text is UTF-8 in any locale.
FLAGS = ("-I", "-S", "-X", "utf8")


def python_argv(mount: PurePath = MOUNT) -> tuple[str, ...]:
    """Start the interpreter in a container with the kit at its place."""
    return (str(mount / PYTHON), *FLAGS)


def python_argv_anywhere(root: Path, loader: str) -> tuple[str, ...]:
    """Start the interpreter of a kit that is in any other folder, through the kit's own loader."""
    libraries = root / LIBRARIES
    # The empty name is the program itself: its own search path is MOUNT, where another kit may be.
    own_libraries = ("--library-path", str(libraries), "--inhibit-rpath", "")
    return (str(libraries / loader), *own_libraries, str(root / PYTHON), *FLAGS)


def environment(root: PurePath = MOUNT) -> dict[str, str]:
    """For programs of the kit only, in addition to the image's variables. An image may have no CA certificates. Its libraries
    to preload and its settings of OpenSSL are for its own programs."""
    return {"SSL_CERT_FILE": str(root / CERTIFICATES), "LD_PRELOAD": "", "OPENSSL_CONF": "/dev/null"}
