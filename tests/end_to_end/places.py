"""Folders that mistakes happen in: each function fills an empty one."""

from __future__ import annotations

import shutil
from pathlib import Path

from commands import ROOT

from node.network.founding import found_swarm
from node.run.preflight import prepare
from node.storage.checkpoints import Checkpoints
from node.storage.run_folder import RunFolder
from protocol.identity import Identity

MODEL = ROOT / "node" / "models" / "tiny"
BEGUN = {"model": "tiny", "dtype": "float32", "lora_rank": 0, "policy_step": 4}


def nothing(folder: Path) -> None:
    """An empty folder."""


def a_node(folder: Path) -> None:
    """One that init has made."""
    prepare(folder / "node")


def a_member(folder: Path) -> None:
    """One whose swarm is known."""
    a_node(folder)
    node = RunFolder(folder / "node")
    node.manifest.write_bytes(found_swarm(Identity.load(node.identity), name="ours"))


def a_trained_node(folder: Path) -> None:
    """A member that has a checkpoint."""
    a_member(folder)
    node = RunFolder(folder / "node")
    Checkpoints(node.checkpoints).save(4, _put_model, BEGUN)


def _put_model(folder: Path) -> None:
    shutil.copytree(MODEL, folder, dirs_exist_ok=True)


def a_file_and_a_folder(folder: Path) -> None:
    """A file where a folder may be meant, and a folder with something in it."""
    (folder / "file").write_text("something\n")
    (folder / "full").mkdir()
    (folder / "full" / "file").write_text("something\n")


def a_closed_folder(folder: Path) -> None:
    """A folder that may be looked at alone, and one that may not."""
    for name, mode in (("readable", 0o500), ("closed", 0o000)):
        (folder / name).mkdir()
        (folder / name).chmod(mode)


def a_closed_node(folder: Path) -> None:
    """A node whose folder may not be written to."""
    a_trained_node(folder)
    (folder / "node").chmod(0o500)


def a_node_with_a_closed_config(folder: Path) -> None:
    a_node(folder)
    (folder / "node" / "node.toml").chmod(0)


def a_node_with_a_closed_key(folder: Path) -> None:
    a_node(folder)
    (folder / "node" / "identity.key").chmod(0)


def a_node_with_a_shared_key(folder: Path) -> None:
    a_node(folder)
    (folder / "node" / "identity.key").chmod(0o644)


def a_node_whose_key_is_text(folder: Path) -> None:
    a_node(folder)
    (folder / "node" / "identity.key").write_text("-----BEGIN PRIVATE KEY-----\n")


def a_node_whose_key_is_a_folder(folder: Path) -> None:
    a_node(folder)
    (folder / "node" / "identity.key").unlink()
    (folder / "node" / "identity.key").mkdir(mode=0o700)


def a_node_without_a_key(folder: Path) -> None:
    a_node(folder)
    (folder / "node" / "identity.key").unlink()


def a_node_that_lost_its_key(folder: Path) -> None:
    a_node_without_a_key(folder)
    (folder / "node" / "journal.sqlite").touch()


def a_node_whose_config_is_binary(folder: Path) -> None:
    a_node(folder)
    (folder / "node" / "node.toml").write_bytes(b'[node]\nname = "caf\xe9"\n')


def a_node_whose_config_is_a_folder(folder: Path) -> None:
    a_node(folder)
    (folder / "node" / "node.toml").unlink()
    (folder / "node" / "node.toml").mkdir()


def a_node_whose_manifest_is_text(folder: Path) -> None:
    a_trained_node(folder)
    (folder / "node" / "manifest.swarm").write_text("[swarm]\n")


def a_node_whose_manifest_is_a_folder(folder: Path) -> None:
    a_node(folder)
    (folder / "node" / "manifest.swarm").mkdir()


def a_node_whose_status_is_text(folder: Path) -> None:
    a_node(folder)
    (folder / "node" / "status.json").write_text("running\n")


def a_node_whose_status_is_a_list(folder: Path) -> None:
    a_node(folder)
    (folder / "node" / "status.json").write_text("[1]\n")


def a_damaged_checkpoint(folder: Path) -> None:
    a_trained_node(folder)
    for file in (folder / "node" / "checkpoints").rglob("config.json"):
        file.write_text("{}")


def catalogues(folder: Path) -> None:
    """A node, and catalogues and allow lists of every kind that is none."""
    a_node(folder)
    env = 'name = "gcd"\nsource = "reasoning-gym"\nversion = "0.1.25"\n'
    rest = 'template = "{question}"\nextract = "text"\n'
    texts = {
        "empty": "",
        "yaml": "env:\n  - name: gcd\n",
        "nameless": "[[env]]\nlevels = [{}]\n",
        "short": '[[env]]\nname = "gcd"\nlevels = [{}]\n',
        "unknown": f"[[env]]\n{env}{rest}levels = [{{}}]\ndifficulty = 3\n",
        "twice": f"[[env]]\n{env}{rest}levels = [{{}}]\n" * 2,
        "levels": f"[[env]]\n{env}{rest}levels = 3\n",
        "date": f"[[env]]\n{env}{rest}levels = [{{ a = 2026-01-01 }}]\n",
        "table": f"[env]\n{env}",
        "extract": f'[[env]]\n{env}template = "{{question}}"\nextract = "json"\nlevels = [{{}}]\n',
        "fileless": '[[env]]\nname = "sums"\nsource = "jsonl"\nfile = "sums.jsonl"\n'
        f"{rest}levels = [{{}}]\n",
    }
    for name, text in texts.items():
        (folder / f"{name}.toml").write_text(text)
    (folder / "binary.toml").write_bytes(b"\xff\xfe\x00")
    (folder / "folder.toml").mkdir()
    (folder / "nobody.txt").write_text("# nobody yet\n")
    (folder / "names.txt").write_text("anna\nbert\n")
    (folder / "binary.txt").write_bytes(b"\xff\xfe\x00")
