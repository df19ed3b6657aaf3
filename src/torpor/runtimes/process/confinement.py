"""Examine what this machine can confine, how, and what you can do to confine more.

The examination changes nothing: `torpor doctor` runs it while workspaces run.
"""

import asyncio
import os
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from torpor.ports import CPU_WEIGHT
from torpor.runtimes import forward_policy
from torpor.runtimes.ability import CPU, FILES, FORWARDING, LIMITS, NAMES, USER, Ability
from torpor.runtimes.ability import NETWORK as NETWORK
from torpor.runtimes.firewall_rules import FAMILY
from torpor.runtimes.host_programs import TRIAL_S, ToolFailed, call, find
from torpor.runtimes.nameservers import usable_nameservers
from torpor.runtimes.process import cgroups, network, pasta, user_access, users
from torpor.runtimes.process.cpu_weight import ARCHIVE_WEIGHT, nice_of
from torpor.runtimes.process.options import ProcessOptions
from torpor.runtimes.process.paths import RuntimePaths
from torpor.system_packages import NEEDED_BY_OTHERS, NEEDED_BY_ROOT, install_command

SWITCHED_OFF = "switched off in the options"
REFUSED_TO_ROOT = "give Torpor CAP_SYS_ADMIN and the right to mount (in a container: --privileged)"
REFUSED_TO_OTHERS = (
    "allow user namespaces: sysctl kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0"
)
POOR_LIMITS = "only resource limits for each process"
POOR_WEIGHTS = (
    f"nice values only (workspaces {nice_of(CPU_WEIGHT)}, archives {nice_of(ARCHIVE_WEIGHT)}): "
    "a workspace with many processes or sessions gets more of a busy CPU than one with few"
)


def missing_protections(abilities: Iterable[Ability], *, is_root: bool) -> tuple[Ability, ...]:
    """Return the protections between users that this machine lacks: files and processes, network. Empty: fully confined.

    If Torpor is root, separate users are required as well: without them workspaces run as root.
    """
    protections = (FILES, USER, NETWORK) if is_root else (FILES, NETWORK)
    return tuple(ability for ability in abilities if ability.what in protections and not ability.confined)


NOT_CONFINED = "not confined on this machine"
DOES_NOT_WORK = "does not work on this machine"


def headline(ability: Ability) -> str:
    """The message about a missing ability: a protection is missing, or a feature does not work."""
    return DOES_NOT_WORK if ability.what in (FORWARDING, NAMES) else NOT_CONFINED


OPEN_PORT = (
    "Workspaces share this machine's network: every local process can connect to the port of a program that you start "
    "with template command."
)


def ports_are_open(abilities: Iterable[Ability]) -> bool:
    """Whether OPEN_PORT is true on this machine: workspaces have no separate network."""
    return any(ability.what == NETWORK and not ability.confined for ability in abilities)


class NetworkMode(StrEnum):
    VETH = "veth"
    PASTA = "pasta"
    SHARED = "shared"


@dataclass(frozen=True, slots=True)
class Confinement:
    """The confinement that containers are started with."""

    bubblewrap: str | None
    bounded_tmp: bool
    network: NetworkMode
    nameservers: tuple[str, ...]
    hierarchies: cgroups.Hierarchies | None
    closes_published: bool = True
    """Whether the firewall can match ports that this machine publishes for others (a Docker container)."""
    own_users: bool = True
    """Whether each workspace runs as a separate user if Torpor is root, see `user_access`."""

    @property
    def own_user_namespace(self) -> bool:
        return os.getuid() != 0

    @property
    def shows_folders(self) -> bool:
        """Whether directories below folders that only root can enter are mounted for the workspace's user."""
        return self.bubblewrap is None and self.own_users and os.getuid() == 0

    def user_of(self, workspace_id: str) -> int | None:
        return users.user_of(workspace_id, own=self.own_users)


async def examine(options: ProcessOptions, paths: RuntimePaths) -> tuple[Confinement, tuple[Ability, ...]]:
    bubblewrap, bounded_tmp, sandbox_ability = await _bubblewrap(options)
    nameservers = options.nameservers or usable_nameservers()
    mode, closes_published, network_ability = await _network(options, paths, bubblewrap, sandbox_ability, nameservers)
    own_users, user_ability = await _user(paths, bubblewrap)
    hierarchies, limits_ability = _cgroups(options)
    forwarding = await _forwarding(paths) if mode is NetworkMode.VETH else ()
    abilities = (
        *(sandbox_ability, user_ability, network_ability, *forwarding, _names(mode, nameservers)),
        *(limits_ability, weights_ability(hierarchies)),
    )
    confinement = Confinement(bubblewrap, bounded_tmp, mode, nameservers, hierarchies, closes_published, own_users)
    return confinement, abilities


async def _bubblewrap(options: ProcessOptions) -> tuple[str | None, bool, Ability]:
    what = FILES
    path = find("bwrap")
    if not options.bubblewrap:
        return None, False, Ability(what, False, SWITCHED_OFF)
    if path is None:
        return None, False, Ability(what, False, "bubblewrap is not installed", install_command(_lacking()))
    refusal = ""
    for bounded in (True, False):
        try:
            await call(*_trial(path, bounded=bounded), within_s=TRIAL_S)
        except (ToolFailed, OSError) as error:
            refusal = str(error)
        else:
            how = "bubblewrap: separate mount, process, IPC and host name namespaces"
            return path, bounded, Ability(what, True, how if bounded else f"{how}; /tmp is limited by memory only")
    remedy = REFUSED_TO_ROOT if os.getuid() == 0 else REFUSED_TO_OTHERS
    return None, False, Ability(what, False, f"bubblewrap does not work on this machine: {refusal}", remedy)


def _trial(bubblewrap: str, *, bounded: bool, own_network: bool = False) -> list[str]:
    words = [bubblewrap, "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--as-pid-1", "--die-with-parent"]
    words += ["--unshare-user"] if os.getuid() != 0 else []
    words += ["--unshare-net"] if own_network else []
    words += ["--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--perms", "1777"]
    words += ["--size", "65536"] if bounded else []
    return [*words, "--tmpfs", "/dev/shm", "--", "/bin/sh", "-c", "exit 0"]  # noqa: S108


async def _user(paths: RuntimePaths, bubblewrap: str | None) -> tuple[bool, Ability]:
    what = USER
    if os.getuid() != 0:
        how = "workspaces run as Torpor's user" + (", without its privileges and files" if bubblewrap else "")
        return False, Ability(what, False, how, "run Torpor as root to give each workspace a separate user")
    refusal = await user_access.refusal(paths) if bubblewrap is None else None
    if refusal is not None:
        remedy = "make bubblewrap work, or use a Python and a data directory that every user can enter"
        return False, Ability(what, False, f"workspaces run as root, because separate users do not work: {refusal}", remedy)
    mapped = users.mapped_users()
    how = f"each workspace has a separate user id (such as {users.pick('', mapped)})"
    how = how if mapped.stop > users.WANTED.stop else f"{how}; only {len(mapped)} user ids are available"
    return True, Ability(what, True, how)


async def _network(
    options: ProcessOptions,
    paths: RuntimePaths,
    bubblewrap: str | None,
    sandbox_ability: Ability,
    nameservers: tuple[str, ...],
) -> tuple[NetworkMode, bool, Ability]:
    what = NETWORK
    shared = (
        "workspaces share this machine's network: they can reach its loopback and private networks, which cannot be blocked"
    )
    if not options.own_network:
        return NetworkMode.SHARED, False, Ability(what, False, f"{SWITCHED_OFF}: {shared}")
    if bubblewrap is None:
        return NetworkMode.SHARED, False, Ability(what, False, f"needs bubblewrap: {shared}", sandbox_ability.remedy)
    if os.getuid() != 0:
        mode, ability = await _pasta(what, shared, options, nameservers)
        return mode, False, ability
    if lacking := _lacking():
        remedy = install_command(lacking)
        return NetworkMode.SHARED, False, Ability(what, False, f"{', '.join(lacking)} not installed: {shared}", remedy)
    try:
        closes_published = await _firewall(options, paths)
        await call(*_trial(bubblewrap, bounded=False, own_network=True), within_s=TRIAL_S)
        await asyncio.to_thread(network.require_forwarding)
    except (ToolFailed, OSError) as error:
        remedy = "give Torpor CAP_NET_ADMIN and a writable /proc/sys/net"
        return NetworkMode.SHARED, False, Ability(what, False, f"{error}: {shared}", remedy)
    how = f"separate network namespaces with a /30 of {network.POOL}, outgoing connections only; {_closed(options)}"
    if not closes_published:
        how += "; workspaces can reach ports that this machine publishes (docker -p): no conntrack match for DNAT"
    return NetworkMode.VETH, closes_published, Ability(what, True, how)


def _lacking() -> list[str]:
    return [tool for tool in (NEEDED_BY_ROOT if os.getuid() == 0 else NEEDED_BY_OTHERS) if find(tool) is None]


async def _firewall(options: ProcessOptions, paths: RuntimePaths) -> bool:
    """Whether the firewall accepts all rules, or only those without the match for published ports; otherwise ToolFailed."""
    restore = [find("iptables-restore") or "iptables-restore", "--test", "--noflush", "-w", "5"]

    async def take(*, closes_published: bool) -> None:
        rules = network.VethNetwork(
            paths.tag,
            (),
            blocked=options.blocked_networks,
            allowed=options.allowed_networks,
            closes_published=closes_published,
        ).rules()
        await call(*restore, stdin=rules, within_s=TRIAL_S)

    try:
        await take(closes_published=True)
    except ToolFailed:
        await take(closes_published=False)
        return False
    return True


async def _pasta(what: str, shared: str, options: ProcessOptions, nameservers: tuple[str, ...]) -> tuple[NetworkMode, Ability]:
    if lacking := _lacking():
        how = f"{', '.join(lacking)} not installed: {shared}"
        return NetworkMode.SHARED, Ability(what, False, how, install_command(lacking))
    remedy = f"let Torpor's user read and write {pasta.TUN} (the usual mode is 666)"
    if not os.access(pasta.TUN, os.R_OK | os.W_OK):
        how = f"pasta needs {pasta.TUN}, which Torpor's user cannot read and write: {shared}"
        return NetworkMode.SHARED, Ability(what, False, how, remedy)
    blocked, allowed = options.blocked_networks, options.allowed_networks
    trial = pasta.argv(["/bin/sh", "-c", "exit 0"], nameservers=nameservers, blocked=blocked, allowed=allowed)
    try:
        await call(*trial, within_s=TRIAL_S)
    except (ToolFailed, OSError) as error:
        return NetworkMode.SHARED, Ability(what, False, f"{error}: {shared}", remedy)
    how = f"separate network namespaces with pasta, outgoing connections only, to what this machine reaches; {_closed(options)}"
    return NetworkMode.PASTA, Ability(what, True, how)


async def _forwarding(paths: RuntimePaths) -> tuple[Ability, ...]:
    """Empty if this machine's firewall forwards packets of workspaces, or cannot be listed."""
    try:
        listing = await call(find("iptables") or "iptables", "-w", "5", "-S", within_s=TRIAL_S)
    except ToolFailed:
        return ()
    leaves_by = forward_policy.default_interfaces(await asyncio.to_thread(network.ROUTES.read_text))
    packet = forward_policy.Packet(f"{FAMILY}{paths.tag}00000", network.POOL, leaves_by)
    dropped = forward_policy.find_drop(listing, packet)
    if dropped is None:
        return ()
    how = f"this machine's firewall drops packets of workspaces: {dropped.rule or 'the policy of its chain FORWARD is DROP'}"
    # Appended, not inserted: Torpor's chain, which blocks networks, must come first.
    rule = f"FORWARD -i {FAMILY}+ -j ACCEPT"
    remedy = f"add a rule before that one: {rule}" if dropped.rule else f"iptables -A {rule}"
    return (Ability(FORWARDING, False, f"{how}, and no earlier rule accepts them", remedy),)


def _closed(options: ProcessOptions) -> str:
    except_for = f", except {', '.join(options.allowed_networks)}" if options.allowed_networks else ""
    return f"blocked: {', '.join(options.blocked_networks) or 'no network'}{except_for}"


def _names(mode: NetworkMode, nameservers: tuple[str, ...]) -> Ability:
    what = NAMES
    if nameservers or mode is NetworkMode.SHARED:
        return Ability(what, True, f"nameservers {', '.join(nameservers)}" if nameservers else "the same as this machine")
    how = "this machine's nameservers are on its loopback, where workspaces cannot reach them"
    return Ability(what, False, how, "put a nameserver with another address into /etc/resolv.conf")


def _cgroups(options: ProcessOptions) -> tuple[cgroups.Hierarchies | None, Ability]:
    if not options.cgroups:
        return None, Ability(LIMITS, False, f"{SWITCHED_OFF}: {POOR_LIMITS}")
    hierarchies = cgroups.find()
    if hierarchies is None:
        how = f"no cgroup with memory and pids controllers: {POOR_LIMITS}"
        return None, Ability(LIMITS, False, how, "mount cgroups with both controllers")
    try:
        cgroups.Cgroups(hierarchies, "").check()
    except OSError as error:
        return None, without_cgroups(error)
    return hierarchies, Ability(LIMITS, True, f"cgroup version {hierarchies.version} at {Path(hierarchies.memory)}")


CPU_IS_A_WEIGHT = (
    "The number of cores is stored and not enforced: this machine has no cgroup with the cpu controller, so workspaces share "
    "the CPU by weight only."
)
DISK_IS_NOT_ENFORCED = "The disk size is not enforced; `torpor explain` says when a home is larger."


def cores_are_enforced(abilities: Iterable[Ability]) -> bool:
    """A quota needs the same controller as a weight."""
    return any(one.what == CPU and one.confined for one in abilities)


def weights_ability(hierarchies: cgroups.Hierarchies | None) -> Ability:
    """The ability to give CPU weights with these cgroups, before or after `prepare`."""
    remedy = "run Torpor as root, or with a delegated cgroup that has the cpu controller"
    if hierarchies is None:
        return Ability(CPU, False, f"no cgroups: {POOR_WEIGHTS}", remedy)
    try:
        cgroups.Cgroups(hierarchies, "").check_weights()
    except OSError as error:
        return Ability(CPU, False, f"{error}: {POOR_WEIGHTS}", remedy)
    how = f"cgroup version {hierarchies.version}: each workspace has weight {CPU_WEIGHT} (or its template's `cpu_weight`), "
    return Ability(CPU, True, f"{how}an archive job {ARCHIVE_WEIGHT}; Torpor is not in their group")


def without_cgroups(error: OSError) -> Ability:
    return Ability(LIMITS, False, f"{error}: {POOR_LIMITS}", "run Torpor as root, or with a delegated cgroup")
