"""The JSON of the runtime that has the homes, and of a move to another one: models, and conversions from records."""

from datetime import datetime

from pydantic import Field

from torpor.api.wire import Text, Wire
from torpor.service.runtime_switch import SwitchPreview, SwitchStatus


class NewSwitch(Wire):
    target: Text = Field(max_length=32, description="The runtime to move to: process, docker, podman or kubernetes.")


class StuckOut(Wire):
    workspace: str = Field(description="The name of a workspace that is not archived because of an error.")
    owner: str
    message: str


class SwitchOut(Wire):
    target: str = Field(description="The runtime to move to.")
    began_at: datetime = Field(description="When the move began.")
    homes_left: int = Field(description="How many workspaces are not archived yet.")
    stuck_count: int = Field(description="How many of them have an error that asks for a user.")
    stuck: list[StuckOut] = Field(description="Some of those, for administrators.")


class RuntimeOut(Wire):
    """The runtime that has the homes."""

    world: str | None = Field(description="Its name and identity; null before the first start.")
    switch: SwitchOut | None = Field(description="The move to another runtime that is in progress; null when there is none.")


class CannotRunOut(Wire):
    workspace: str = Field(description="The name of a workspace that the other runtime cannot run. It stays archived.")
    owner: str
    why: str = Field(description="Why not.")


class SwitchPreviewOut(Wire):
    target: str = Field(description="The runtime to move to.")
    workspaces: int = Field(description="How many workspaces are moved.")
    running: int = Field(description="How many of them run now, and are stopped.")
    cannot_run: list[CannotRunOut] = Field(description="Those that the other runtime cannot run.")


def runtime_out(status: SwitchStatus, *, is_admin: bool) -> RuntimeOut:
    switch = status.runtime.switch
    if switch is None:
        return RuntimeOut(world=status.runtime.world, switch=None)
    stuck = [
        StuckOut(workspace=one.name, owner=one.owner, message=one.error.message if one.error is not None else "")
        for one in (status.stuck if is_admin else ())
    ]
    told = SwitchOut(
        target=switch.target,
        began_at=switch.began_at,
        homes_left=status.homes_left,
        stuck_count=status.stuck_count,
        stuck=stuck,
    )
    return RuntimeOut(world=status.runtime.world, switch=told)


def preview_out(preview: SwitchPreview) -> SwitchPreviewOut:
    refused = [CannotRunOut(workspace=one.workspace, owner=one.owner, why=one.why) for one in preview.cannot_run]
    return SwitchPreviewOut(target=preview.target, workspaces=preview.workspaces, running=preview.running, cannot_run=refused)
