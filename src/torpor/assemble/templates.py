"""Read the templates of this installation, and report files of `templates_dir` that cannot be used."""

import sys

import structlog

from torpor.settings import Settings
from torpor.templates.catalogue import Catalogue, load_catalogue

log = structlog.get_logger()
CHECK = "`torpor templates check` checks the files; restart Torpor after a correction"


def read_templates(settings: Settings) -> Catalogue:
    """The templates. Each broken file is printed and logged; the others can be used."""
    catalogue = load_catalogue(settings.templates_dir, settings.image_policy)
    for one in catalogue.broken:
        for fault in one.faults:
            print(f"torpor: a template cannot be used: {fault}", file=sys.stderr)
        log.warning("template_broken", template=one.name, faults=list(one.faults))
    return catalogue
