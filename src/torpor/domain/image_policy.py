"""Decide which images an installation runs: those of a runtime that runs images, and of the administrator's allow-list."""

from dataclasses import dataclass
from fnmatch import fnmatchcase

from torpor.domain.errors import Refused
from torpor.domain.image_reference import ImageReference, parse_image

RUNS_PROCESSES = ("auto", "process")
"""The runtimes that run programs of this machine, and install the packages of templates. All others run images."""


@dataclass(frozen=True, slots=True)
class ImagePolicy:
    runs_images: bool
    """False: the runtime runs programs of this machine."""
    installs_packages: bool
    """False: a template needs an image that contains its packages."""
    allowlist: tuple[str, ...] = ()
    """Patterns of normalized references; empty: every image is allowed."""

    def admit(self, image: str) -> ImageReference:
        """The image, if a workspace may use it; else Refused. Checked when a workspace is created and before each start."""
        self.require_engine(f"the image {image!r}", "leave out the image, or choose a template that needs none")
        reference = parse_image(image)
        if self.allowlist and not any(fnmatchcase(str(reference), pattern) for pattern in self.allowlist):
            raise Refused(
                "image_not_allowed",
                f"The image {str(reference)!r} is not allowed here. Allowed are: {', '.join(self.allowlist)}. An administrator "
                "changes that with the setting image_allowlist.",
                image=str(reference),
                allowed=self.allowlist,
            )
        return reference

    def require_engine(self, what: str, instead: str) -> None:
        """Refused unless the runtime runs images. `what` needs that; `instead`: what the user can do without."""
        if not self.runs_images:
            raise Refused(
                "images_not_supported",
                f"The runtime of this installation runs programs of its machine and no images, so it cannot run {what}: "
                f"{instead}. An administrator chooses a runtime that runs images with the setting `runtime`.",
            )

    def require_packages(self, template: str) -> None:
        """Refused unless the runtime installs the packages of a template."""
        if not self.installs_packages:
            raise Refused(
                "packages_not_supported",
                f"The template {template!r} installs packages, which the runtime of this installation cannot do: choose "
                "another one. An administrator adds a template with the same name that names an image with these packages.",
            )


def policy_of_runtime(runtime: str, allowlist: tuple[str, ...] = ()) -> ImagePolicy:
    """Of the setting `runtime`. The fake runs everything."""
    return ImagePolicy(runtime not in RUNS_PROCESSES, runtime in (*RUNS_PROCESSES, "fake"), allowlist)


NO_IMAGES = ImagePolicy(runs_images=False, installs_packages=True)
ANY_IMAGE = ImagePolicy(runs_images=True, installs_packages=True)
ONLY_IMAGES = ImagePolicy(runs_images=True, installs_packages=False)


def parse_allowlist(text: str) -> tuple[str, ...]:
    """The patterns, separated by commas; ValueError if one can never match a normalized reference."""
    patterns = tuple(word for part in text.split(",") if (word := part.strip()))
    for pattern in patterns:
        if "/" not in pattern and "*" not in pattern and "?" not in pattern:
            meant = str(parse_image(pattern)) if _is_reference(pattern) else f"docker.io/library/{pattern}"
            raise ValueError(f"{pattern!r} matches no image, because patterns contain the registry; write {meant!r}")
    return patterns


def _is_reference(text: str) -> bool:
    try:
        parse_image(text)
    except Refused:
        return False
    return True
