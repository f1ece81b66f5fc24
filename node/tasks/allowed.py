"""What the config lets a catalogue open."""

from __future__ import annotations

from node.config.sections import TasksSection
from node.tasks.catalogue import Allowed
from node.tasks.sandbox.walls import find_walls


def allowed_by(tasks: TasksSection) -> Allowed:
    """What the table ``[tasks]`` of the user's own file allows, on this machine."""
    return Allowed(
        tasks.files, tasks.evaluating, tasks.read, tasks.network, walled=find_walls().whole
    )
