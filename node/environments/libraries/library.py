"""Which libraries bring environments, and the environment that each is opened as.

A library is imported only where a catalogue names it.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec

from node.environments.environment import Environment


@dataclass(frozen=True, slots=True)
class Library:
    """One, by the name of its package, which is that of the extra as well.

    Attributes:
        module: ours, which imports it.
        adapter: the class in that.
    """

    package: str
    module: str
    adapter: str

    @property
    def remedy(self) -> str:
        """How to get it."""
        return f"pip install 'swarm-node[{self.package}]'"

    def is_here(self) -> bool:
        """Whether it is installed; nothing of it is run."""
        return find_spec(self.package) is not None

    def load(self) -> type[Environment]:
        """Its environment.

        Raises:
            ImportError: it cannot be imported; the message says why.
        """
        module = importlib.import_module(f"node.environments.libraries.{self.module}")
        adapter: type[Environment] = getattr(module, self.adapter)
        return adapter


LIBRARIES: Mapping[str, Library] = {
    "gymnasium": Library("gymnasium", "gymnasium_task", "GymnasiumTask"),
    "textarena": Library("textarena", "textarena_game", "TextArenaGame"),
}
"""By the name of the env in a catalogue."""
