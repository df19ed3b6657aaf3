"""Decide who may use an installation whose workspaces are not confined: one user, unless its operator accepts more."""

from collections.abc import Iterable
from dataclasses import dataclass

from torpor.domain.errors import Refused
from torpor.domain.sizes import WorkspaceSize

ONE_USER = (
    "Workspaces are not confined from each other, so this installation is for one user;"
    " --unconfined (setting `unconfined`) accepts several."
)
SEVERAL_USERS = "Workspaces are not confined from each other; several users are accepted (setting `unconfined`)."
WHY = "workspaces here are not confined, so users are not protected from each other's programs."


@dataclass(frozen=True, slots=True)
class MissingProtection:
    """One protection between users that a controller's machine lacks."""

    what: str
    why: str
    remedy: str
    """The command or change that provides it; empty when there is none."""


@dataclass(frozen=True, slots=True)
class ControllerConfinement:
    """What one controller tells about the confinement of its workspaces."""

    missing: tuple[MissingProtection, ...] = ()
    is_accepted: bool = False
    """The operator accepts several users without confinement."""
    port_warning: str = ""
    """For users who bring their own program; empty when its port is closed to other programs."""
    cpu_warning: str = ""
    """For users who ask for cores; empty if the machine enforces them."""
    disk_warning: str = ""
    """For users who ask for disk space; empty if the machine enforces it."""

    @property
    def is_for_one_user(self) -> bool:
        return bool(self.missing) and not self.is_accepted

    @property
    def summary(self) -> str:
        """What the missing confinement means for users; empty if none is missing."""
        if not self.missing:
            return ""
        return SEVERAL_USERS if self.is_accepted else ONE_USER


CONFINED = ControllerConfinement()


def admit_user(users: int, controllers: Iterable[ControllerConfinement], *, failed: str) -> None:
    """Return if this many users may sign in; else raise Refused `unconfined`, for an administrator. `failed`: what did not
    happen."""
    if missing := _too_few_protections(users, controllers):
        raise _refused(f"{failed}: {WHY}", missing)


def admit_sign_in(users: int, controllers: Iterable[ControllerConfinement]) -> None:
    """Return if this many users may sign in; else raise Refused `unconfined`, without the missing protections, which only an
    administrator may know."""
    if _too_few_protections(users, controllers):
        raise Refused(
            "unconfined",
            "No user was created for you: this installation is for one user, because its workspaces are not confined."
            " Ask its administrator to confine them.",
        )


def admit_controller(users: int, controller: ControllerConfinement) -> None:
    """Return if a controller with this confinement may run workspaces for this many users; else raise Refused `unconfined`."""
    if missing := _too_few_protections(users, (controller,)):
        raise _refused(f"Torpor does not start: {users} users can sign in, and {WHY}", missing)


def port_warnings(controllers: Iterable[ControllerConfinement]) -> tuple[str, ...]:
    """Return the warnings for users who bring their own program; a workspace may start at any of these controllers."""
    return tuple(dict.fromkeys(one.port_warning for one in controllers if one.port_warning))


def size_warnings(controllers: Iterable[ControllerConfinement], size: WorkspaceSize) -> tuple[str, ...]:
    """Return what is not enforced of this size at one of these controllers."""
    found = []
    for one in controllers:
        found += [one.cpu_warning] if size.cpu is not None else []
        found += [one.disk_warning] if size.disk_mb is not None else []
    return tuple(dict.fromkeys(filter(None, found)))


def _too_few_protections(users: int, controllers: Iterable[ControllerConfinement]) -> tuple[MissingProtection, ...]:
    if users <= 1:
        return ()
    return tuple(dict.fromkeys(missing for one in controllers if one.is_for_one_user for missing in one.missing))


def _refused(what: str, missing: tuple[MissingProtection, ...]) -> Refused:
    lacks = "; ".join(f"{one.what}: {one.why}" for one in missing)
    remedies = "; ".join(_remedies(missing))
    fix = f"To confine workspaces: {remedies}; then restart Torpor." if remedies else "Confine workspaces, then restart Torpor."
    return Refused(
        "unconfined",
        f"{what} Missing: {lacks}. {fix} To accept several users without confinement: start Torpor with --unconfined"
        " (setting `unconfined`).",
        missing=[one.what for one in missing],
    )


def _remedies(missing: tuple[MissingProtection, ...]) -> list[str]:
    """Each once, without those that are the begin of another one: a command that installs more packages includes it."""
    every = dict.fromkeys(one.remedy for one in missing if one.remedy)
    return [remedy for remedy in every if not any(other != remedy and other.startswith(remedy) for other in every)]
