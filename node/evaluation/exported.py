"""What goes with an exported model."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import constants

from node.config.config import Config
from node.evaluation.model_card import Origin, Training, model_card
from node.monitor.history import read_history
from node.network.pinned_manifest import checked_manifest
from node.storage.atomic_files import write_atomic
from node.storage.checkpoints import Checkpoints, Loaded
from node.storage.run_folder import RunFolder
from protocol.manifest import swarm_id


def write_card(
    config: Config, folder: RunFolder, loaded: Loaded, out: Path, *, adapter: bool = False
) -> None:
    """Write the model card of a checkpoint of ``folder`` into the exported model ``out``.

    Raises:
        NodeError: the run's records or manifest cannot be read, or the card cannot be written.
    """
    history, steps = read_history(folder.root), loaded.state.get("policy_step")
    training = Training.of(history, loaded.step, steps)
    card = model_card(config, training, _origin(folder, loaded), adapter=adapter)
    write_atomic(out / constants.REPOCARD_NAME, card.encode())


def _origin(folder: RunFolder, loaded: Loaded) -> Origin:
    if not folder.manifest.exists():
        return Origin(None, None, None)
    signed = folder.manifest.read_bytes()
    rated = Checkpoints(loaded.path.parent).rewards.read().get(loaded.step)
    here = rated is not None and rated[0] == swarm_id(signed).hex()
    return Origin(
        signed, checked_manifest(signed, str(folder.manifest)), rated[1] if rated and here else None
    )
