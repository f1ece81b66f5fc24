import pytest

from node.config.config import Config
from node.network.creation import create_swarm
from node.run.node import Node
from node.storage.run_folder import RunFolder
from protocol.identity import Identity


@pytest.mark.processes
def test_node_warns_once_about_keys_of_oversized_groups(tmp_path):
    folder, identity = RunFolder(tmp_path).create(), Identity.generate()
    folder.identity.write_bytes(identity.export())
    folder.identity.chmod(0o600)
    folder.manifest.write_bytes(create_swarm(identity, name="short answers"))
    keys = {"engine.group_size": 65, "engine.max_new_tokens": 4}
    keys["network.listen"] = ["/ip4/127.0.0.1/tcp/0"]
    with Node(Config.with_overrides(keys), folder) as node:
        matches = [note for note in node.notes if "engine.group_size = 65" in note]
        assert len(matches) == 1 and "max_completions" in matches[0]
        assert "swarm-node create --answer-tokens 4 --group-size 65" in matches[0]
        assert node.counters.snapshot()["groups_may_not_fit"] == 1
