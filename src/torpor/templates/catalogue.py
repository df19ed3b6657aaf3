"""Load the templates: those that Torpor brings, and those that the administrator adds in `templates_dir`."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType

from torpor.domain.before_sleep import chosen_before_sleep
from torpor.domain.errors import Refused
from torpor.domain.image_policy import NO_IMAGES, ImagePolicy, policy_of_runtime
from torpor.domain.records import Workspace
from torpor.domain.sizes import NO_SIZE, WorkspaceSize
from torpor.ports import Program
from torpor.templates.template_file import SUFFIX, Template, TemplateBroken, nearest, parse

DEFAULT = "terminal"
DEFAULT_WITH_IMAGE = "image"
# The limit of all arguments together, because every event about a workspace contains its command.
LONGEST_COMMAND_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class BrokenTemplate:
    """A file of `templates_dir` that cannot be used."""

    name: str
    """The file's name without its suffix. A template with this name does not exist, even if Torpor brings one."""
    faults: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Catalogue:
    """The templates of an installation, by name; the default is the first."""

    templates: Mapping[str, Template]
    added: frozenset[str] = frozenset()
    """The names of those that the administrator added or replaced."""
    broken: tuple[BrokenTemplate, ...] = ()
    images: ImagePolicy = NO_IMAGES

    @property
    def available(self) -> Mapping[str, Template]:
        """Those that the runtime of this installation can run."""
        return {name: one for name, one in self.templates.items() if self._can_run(one)}

    def _can_run(self, template: Template) -> bool:
        images = self.images
        return (images.runs_images or not template.needs_engine) and (images.installs_packages or not template.needs_packages)

    def at_runtime(self, runtime: str) -> "Catalogue":
        """The same templates, at another runtime."""
        return replace(self, images=policy_of_runtime(runtime, self.images.allowlist))

    def default_name(self, image: str | None) -> str:
        """The template of a workspace that is created without one."""
        return DEFAULT if image is None else DEFAULT_WITH_IMAGE

    def template(self, name: str) -> Template:
        """The template with this name; raises Refused if there is none."""
        found = self.templates.get(name)
        if found is not None:
            return found
        allowed = tuple(self.available)
        for one in self.broken:
            if one.name == name:
                raise Refused(
                    "unknown_template",
                    f"The template {name!r} cannot be used: {'; '.join(one.faults)}. An administrator corrects the file and "
                    "restarts Torpor.",
                    allowed=allowed,
                )
        raise Refused(
            "unknown_template", f"There is no template {name!r}: choose one of {', '.join(allowed)}.", allowed=allowed
        )

    def program(self, chosen: Template, command: tuple[str, ...] | None, image: str | None = None) -> Program:
        """The program that a container runs for a workspace with this template, command and image."""
        reference = self._image(chosen, image)
        if command and not chosen.takes_command:
            takers = " or ".join(taker.name for taker in self.available.values() if taker.takes_command)
            raise Refused(
                "command_not_taken",
                f"The template {chosen.name} runs its own program. Leave out the command, or choose {takers}.",
            )
        if chosen.needs_command and not command:
            raise Refused("command_required", f"The template {chosen.name} needs a command: a program that listens on $PORT.")
        if command and (not command[0] or any("\0" in word for word in command)):
            raise Refused(
                "command_invalid",
                "A command is a program and its arguments: the program must not be empty, and none may contain a NUL.",
            )
        if command and sum(len(word.encode("utf-8", "surrogatepass")) for word in command) > LONGEST_COMMAND_BYTES:
            raise Refused(
                "command_invalid",
                f"A command has at most {LONGEST_COMMAND_BYTES // 1024} KiB. Put a longer one into a file and run that.",
            )
        in_image = self.images.runs_images and bool(chosen.image_command)
        program = Program(
            chosen.name,
            chosen.image_command if in_image else chosen.command,
            chosen.environment,
            () if in_image else chosen.packages,
            cpu_weight=chosen.cpu_weight,
            image=reference,
            npm=() if in_image else chosen.npm,
        )
        if not command:
            return program
        # A variable with Torpor's packages is for Torpor's interpreter, not for the user's program.
        environment = {name: value for name, value in chosen.environment.items() if "{site}" not in value}
        return replace(program, command=command, environment=environment, is_verbatim=True)

    def _image(self, chosen: Template, image: str | None) -> str | None:
        """The normalized reference, if this installation runs it; else Refused."""
        if chosen.needs_packages:
            self.images.require_packages(chosen.name)
        if image is not None:
            return str(self.images.admit(image))
        if chosen.needs_engine:
            self.images.require_engine(f"the template {chosen.name!r}", "choose another template")
        if chosen.takes_image:
            raise Refused("image_required", f"The template {chosen.name} needs an image: name one, for example python:3.12.")
        return str(self.images.admit(chosen.image)) if chosen.image and self.images.runs_images else None

    def program_of(self, workspace: Workspace) -> Program:
        """The program of a stored workspace; raises Refused if its template was removed since it was created."""
        if workspace.template not in self.templates and all(one.name != workspace.template for one in self.broken):
            near = nearest(workspace.template, self.templates)
            raise Refused(
                "unknown_template",
                f"The template {workspace.template!r} of this workspace no longer exists"
                f"{f' (did {near!r} replace it?)' if near else ''}. The home is kept. An administrator puts "
                f"{workspace.template}{SUFFIX} back into templates_dir and restarts Torpor; then start the workspace again.",
                template=workspace.template,
            )
        return self.program(self.template(workspace.template), workspace.command or None, workspace.image)

    def counts_cpu(self, name: str) -> bool:
        """Whether CPU use keeps a workspace with this template awake; also true if the template no longer exists."""
        found = self.templates.get(name)
        return found is None or found.cpu_keeps_awake

    def size_of(self, workspace: Workspace) -> WorkspaceSize:
        """The size that this workspace has unless it has its own."""
        found = self.templates.get(workspace.template)
        return found.size if found is not None else NO_SIZE

    def before_sleep_of(self, workspace: Workspace) -> tuple[str, ...]:
        """The command that runs before an automatic stop of this workspace; empty: none."""
        found = self.templates.get(workspace.template)
        return chosen_before_sleep(workspace.before_sleep, found.before_sleep if found is not None else ())


@cache
def shipped() -> Catalogue:
    """The templates that Torpor brings, read once."""
    found, broken = read_folder(Path(__file__).parent)
    if broken:
        raise TemplateBroken(fault for one in broken for fault in one.faults)
    return Catalogue(MappingProxyType({DEFAULT: found[DEFAULT], **found}))


def load_catalogue(templates_dir: Path | None, images: ImagePolicy) -> Catalogue:
    """The shipped templates and the administrator's. A file in `templates_dir` replaces a shipped template of its name.

    A file that is broken does not stop the others from being used.
    """
    if templates_dir is None:
        return shipped() if images == NO_IMAGES else replace(shipped(), images=images)
    found, broken = read_folder(templates_dir)
    hidden = {one.name for one in broken}
    merged = {name: one for name, one in {**shipped().templates, **found}.items() if name not in hidden}
    return Catalogue(MappingProxyType(merged), frozenset(found), broken, images)


def read_folder(folder: Path) -> tuple[Mapping[str, Template], tuple[BrokenTemplate, ...]]:
    """The templates in a folder, sorted by name, and the files that cannot be used."""
    found, broken = {}, []
    try:
        paths = template_files(folder)
    except OSError as error:
        return {}, (BrokenTemplate("", (f"{folder}: the folder cannot be read: {error.strerror}; check templates_dir",)),)
    for path in paths:
        try:
            read = read_file(path)
            found[read.name] = read
        except TemplateBroken as error:
            broken.append(BrokenTemplate(path.name.removesuffix(SUFFIX), error.faults))
    return MappingProxyType(found), tuple(broken)


def template_files(folder: Path) -> list[Path]:
    """The files of a folder that are templates; other files, such as a README, are ignored. OSError without the folder."""
    return sorted(path for path in folder.iterdir() if path.name.endswith(SUFFIX) and not path.name.startswith("."))


def read_file(path: Path) -> Template:
    """Raises TemplateBroken, also if the file cannot be read."""
    try:
        return parse(path.name, path.read_text(encoding="utf-8"))
    except OSError as error:
        raise TemplateBroken([f"{path.name}: cannot be read: {error.strerror}"]) from error
    except UnicodeDecodeError as error:
        raise TemplateBroken([f"{path.name}: not UTF-8 (byte {error.start}); save it as UTF-8"]) from error
