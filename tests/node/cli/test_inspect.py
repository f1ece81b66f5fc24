import os
import shutil
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from node.config.config import set_keys
from node.errors import NodeError
from node.monitor.history import read_history
from node.monitor.output import printable
from node.monitor.record import RoundRecord, short_ids
from node.storage.run_folder import RunFolder
from protocol.identity import Identity, peer_id_of
from swarm.common.clock import SystemClock
from swarm.journal import Journal
from swarm.reputation import Accounts
from tests.node.conftest import Terminal
from tests.node.monitor.test_groups_file import GROUP, write

SWARM = "ab" * 32
LAST = RoundRecord(round=9, policy_step=8, time=1.0, reward_local=0.5)


def made(terminal: Terminal, path: str, **status: object) -> RunFolder:
    """Create a node with init and write its status."""
    terminal.ok("init", path)
    folder = RunFolder(Path(path))
    if status:
        swarm = {"swarm_name": "sums", "swarm_id": SWARM}
        folder.write_status({**swarm, "record": LAST.to_dict(), **status})
    return folder


def by_path(terminal: Terminal, *args: str) -> dict[str, dict]:
    return {run["path"]: run for run in terminal.json("list", *args)["runs"]}


def test_list_shows_every_run_folder_with_its_state(terminal):
    made(terminal, "fresh")
    made(terminal, "a/b/done", state="stopped", time=time.time() - 7200.0)
    made(terminal, "a/died", state="running", time=time.time())
    works = made(terminal, "a/works", state="running", pid=os.getpid(), time=time.time())
    Path("a/plain").mkdir()
    with works.locked():
        runs = by_path(terminal)
        shown = terminal.ok("list")
    states = {"a/b/done": "stopped", "a/died": "crashed", "a/works": "running", "fresh": "new"}
    assert {path: run["state"] for path, run in runs.items()} == states
    done, fresh = runs["a/b/done"], runs["fresh"]
    assert (done["swarm_id"], done["round"], done["reward"]) == (SWARM, 9, 0.5)
    assert done["age_s"] >= 7200.0
    assert (fresh["swarm_id"], fresh["round"], fresh["reward"], fresh["age_s"]) == (None,) * 4
    line = next(line for line in shown.splitlines() if "a/b/done" in line)
    for part in ("stopped", "sums", SWARM[:8] + "…", " 9 ", "0.500", "2 h"):
        assert part in line
    assert SWARM not in shown


@pytest.mark.parametrize("width", ["20", "40", "60", "80"])
def test_list_keeps_whole_figures_on_narrow_terminals(terminal, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", width)
    late = {**LAST.to_dict(), "round": 1012}
    for path in ("short", "a-folder/of-many/runs-with/a-long-name"):
        made(terminal, path, state="stopped", time=time.time() - 7200.0, record=late)
    lines = terminal.ok("list").splitlines()
    short = next(line for line in lines if line.split()[:1] == ["short"])
    for shown in (" stopped ", " sums ", SWARM[:8] + "…", " 1012 ", " 0.500 ", " 2 h"):
        assert shown in short
    rest = [line.split()[0] for line in lines if line.strip() and line != short]
    assert "a-folder/of-many/runs-with/a-long-name" in "".join(rest)


def test_list_includes_the_folder_and_limits_the_depth(terminal):
    made(terminal, "one")
    made(terminal, "one/two/three")
    for depth, paths in (("0", {"one"}), ("1", {"one"}), ("2", {"one", "one/two/three"})):
        assert set(by_path(terminal, "one", "--depth", depth)) == paths
    assert set(by_path(terminal, "one/two/three")) == {"one/two/three"}


def test_list_skips_links_and_hidden_folders(terminal):
    made(terminal, "there/real")
    made(terminal, "there/.hidden/node")
    for link, target in (("linked", "there/real"), ("circle", "there")):
        Path("there", link).symlink_to(Path(target).absolute())
    assert set(by_path(terminal, "there")) == {"there/real"}


def test_list_size_counts_only_node_files(terminal):
    folder = made(terminal, "node")
    before = by_path(terminal)["node"]["size"]
    assert before == folder.config.stat().st_size + folder.identity.stat().st_size
    Path("node/somebody-elses").write_bytes(bytes(5000))
    (folder.checkpoints / "step-00000001").mkdir(parents=True)
    (folder.checkpoints / "step-00000001" / "model").write_bytes(bytes(1000))
    Path("node/journal.sqlite-wal").write_bytes(bytes(150))
    (folder.swarms / SWARM).mkdir(parents=True)
    (folder.swarms / SWARM / "journal.sqlite").write_bytes(bytes(50))
    assert by_path(terminal)["node"]["size"] == before + 1200


def test_list_reports_unreadable_folders(terminal, monkeypatch):
    """The test replaces scandir, because root may read any folder."""
    Path("closed").mkdir()
    scandir = os.scandir

    def refuse(folder):
        if Path(folder) == Path("closed"):
            raise PermissionError(13, "Permission denied", str(folder))
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", refuse)
    made(terminal, "node")
    told = terminal.json("list")
    assert [run["path"] for run in told["runs"]] == ["node"] and told["unread"] == ["closed"]


def test_list_names_and_counts_folders_with_a_broken_status(terminal):
    made(terminal, "good", state="stopped", time=1.0)
    made(terminal, "odd", state="stopped", time=1.0, swarm_id=[7], record={"round": "many"})
    for name, status in {"other": "{", "strange": "[[1, 2, 3]]"}.items():
        made(terminal, name).status.write_text(status)
    assert "good" in terminal.ok("list") and "odd" not in terminal.out
    assert "3 folders could not be read, such as odd" in terminal.err
    listed = terminal.json("list")
    assert [run["path"] for run in listed["runs"]] == ["good"]
    assert listed["unread"] == ["odd", "other", "strange"]


def test_list_distinguishes_empty_and_missing_folders(terminal):
    assert "no run folders" in terminal.ok("list")
    assert "no such folder: nowhere" in terminal.fails(2, "list", "nowhere")


def test_list_tolerates_a_checkpoint_deleted_meanwhile(terminal, monkeypatch):
    draft = made(terminal, "node").checkpoints / "draft"
    draft.mkdir(parents=True)
    (draft / "model").write_bytes(bytes(1000))
    walk = os.walk

    def walk_and_lose(top, **options):
        seen = list(walk(top, **options))
        if Path(top).name == "checkpoints":
            shutil.rmtree(top, ignore_errors=True)
        return seen

    monkeypatch.setattr(os, "walk", walk_and_lose)
    assert by_path(terminal)["node"]["size"] > 0


def identity(name: str) -> Identity:
    return Identity.from_seed(name.encode().ljust(32, b"."))


ANNA, BEN = identity("anna").peer_id, identity("ben").peer_id


def peer(whose: str, /, **changes: Any) -> dict[str, Any]:
    link = {"connected": True, "link": "direct", "round_trip_s": 0.0123, "clock_ahead_s": -0.25}
    swarm = {"swarm_id": SWARM, "policy_step": 4, "bytes_in": 2048, "bytes_out": 10, "admitted": 3}
    times = {"heard": time.time() - 3.0, "admitted_at": time.time() - 600.0, "bootstrap": False}
    refused = {"reward_mismatch": 2, "expired": 1}
    reputation = {"refused": refused, "strikes": 2.0, "banned": False}
    return {"peer_id": identity(whose).peer_id, **link, **swarm, **times, **reputation, **changes}


def meet(node: RunFolder, *peers: dict[str, Any], **status: object) -> list[dict[str, Any]]:
    node.write_status({"swarm_id": SWARM, "peers": peers, "peer_id": "12D3KooWme", **status})
    return list(peers)


def rows(terminal: Terminal, peers: list[dict[str, Any]], *arguments: str) -> list[str]:
    """Return the table row of each peer."""
    lines = terminal.ok("peers", *arguments, *AT).splitlines()
    return [next(line for line in lines if p["peer_id"][:14] in line) for p in peers]


AT = ("--config", "node")


@pytest.fixture
def met(node):
    sam = peer("sam", bootstrap=True, admitted=0, admitted_at=None, refused={})
    mallory = peer("mallory", swarm_id="cd" * 32, admitted=0, admitted_at=None, banned=True)
    return meet(node, peer("anna"), sam, mallory)


@pytest.mark.parametrize("width", ["20", "45", "70", "80", "200"])
def test_peers_shows_whole_columns_on_narrow_terminals(terminal, met, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", width)
    shown = terminal.ok("peers", *AT)
    for each, short in zip(met, short_ids([p["peer_id"] for p in met]), strict=True):
        assert len(short) == 15 and each["peer_id"] not in shown
        assert [line for line in shown.splitlines() if short in line.split()]
    assert all(column in shown for column in ("when", "groups", "penalty", "refused"))


@pytest.mark.parametrize("width", ["20", "80", "100"])
def test_peers_shows_whole_reasons_on_narrow_terminals(terminal, node, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", width)
    reasons = {"reward_mismatch": 3, "bad_signature": 1, "stale_epoch": 7}
    meet(node, *(peer(n, name="a name of some length", refused=reasons) for n in ("anna", "ben")))
    shown = terminal.ok("peers", *AT).split()
    assert all(shown.count(reason) == 2 for reason in reasons), terminal.out


def test_peers_counts_peers_omitted_from_the_report(terminal, node, met):
    own = {"peer_id": "12D3KooWme", "swarm_id": SWARM, "swarm_name": "sums"}
    node.write_status({**node.read_status(), **own, "peers_more": 1000})
    assert "1002 present; 1 in another swarm" in terminal.ok("status", *AT)
    assert terminal.ok("peers", *AT).endswith("\nand 1000 more\n")


def test_peers_table_shows_role_times_and_groups_per_peer(terminal, met):
    anna, sam, mallory = rows(terminal, met)
    assert "no step" not in anna and " no step " in sam
    assert " another swarm, banned " in mallory
    assert "s/10 min" in anna and "s/–" in sam
    assert "2.0 kB" in anna and "reward_mismatch 2" in anna


def test_peers_table_uses_one_line_each_in_80_columns(terminal, node, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    now = time.time()
    sam = peer("sam", bootstrap=True, heard=now, admitted=0, admitted_at=None, refused={})
    anna = peer("anna", bytes_in=68_400, bytes_out=71_400, heard=now, admitted_at=now, refused={})
    peers = meet(node, sam, anna)
    lines = terminal.ok("peers", *AT).splitlines()
    assert len(list(filter(str.strip, lines))) == 2 + len(peers), terminal.out
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("cut", ["peer id", "as the table has it", "author", "whole"])
def test_peers_shows_full_details_for_a_unique_prefix(terminal, met, cut):
    anna = identity("anna")
    shown = short_ids([each["peer_id"] for each in met])[0]
    ways = {"peer id": shown.rstrip("…"), "as the table has it": shown, "whole": anna.peer_id}
    given = {**ways, "author": anna.author.hex()[:8]}[cut]
    told = terminal.ok("peers", given, *AT)
    for expected in (anna.peer_id, anna.author.hex(), "2.0 kB", "reward_mismatch 2", "10 min"):
        assert expected in told
    gone = dict.fromkeys(("link", "round_trip_s", "clock_ahead_s"))
    expected = {**met[0], "connected": False, **gone, "trusted": False, "blocked": False}
    assert terminal.json("peers", given, *AT) == expected


@pytest.mark.parametrize(
    "around",
    ["/p2p/{}", "{},", "'{}'", "peer {}, 3 groups", "/ip4/1.2.3.4/tcp/5/p2p/Qm/p2p-circuit/p2p/{}"],
)
def test_peers_ignores_text_pasted_around_an_id(terminal, met, around):
    for given in (ANNA, short_ids([each["peer_id"] for each in met])[0]):
        assert terminal.json("peers", around.format(given), *AT)["peer_id"] == ANNA


@pytest.mark.parametrize(("given", "said"), [("12D3", "several peers"), ("12D3KooWx0", "no peer")])
def test_peers_rejects_ambiguous_or_unknown_prefixes(terminal, met, given, said):
    assert said in terminal.refuses(2, "peers", given, *AT)
    assert all(each["peer_id"] in terminal.err for each in met)


@pytest.mark.parametrize(
    ("ids", "most", "shown"),
    [
        (["abcd", "abxy"], 2, ["abc…", "abx…"]),
        (["abcd", "abcd", "bcde"], 2, ["ab…", "ab…", "bc…"]),
        (["ab", "abc"], 2, ["ab", "abc"]),
        (["abc"], 3, ["abc"]),
    ],
)
def test_short_ids_end_at_the_first_difference(ids, most, shown):
    assert short_ids(ids, most) == shown and short_ids([]) == []


def test_peers_shows_connections_only_while_node_runs(terminal, node):
    peers = [peer("anna"), peer("rita", link="relayed"), peer("gus", link=None, connected=False)]
    with node.locked():
        meet(node, *peers, state="running", pid=os.getpid(), time=time.time())
        anna, rita, gus = rows(terminal, peers)
        assert " relayed " in rita and "relayed" not in anna + gus
        assert "yes, through a relay" in terminal.ok("peers", peers[1]["peer_id"], *AT)
        assert "yes, directly" in terminal.ok("peers", peers[0]["peer_id"], *AT)
        assert "12.3 ms" in terminal.out and "0.25 s behind, ± 0.006 s" in terminal.out
    assert "relayed" not in terminal.ok("peers", *AT), "a stopped node has no connections"


@pytest.mark.parametrize("width", ["20", "45", "80", "200"])
def test_peers_shows_ids_of_equal_names_at_any_width(terminal, node, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", width)
    names = {"anna": "anna", "mallory": "anna", "ben": None}
    peers = meet(node, *(peer(whose, name=name) for whose, name in names.items()))
    lines = terminal.ok("peers", *AT).splitlines()
    for at, beginning in enumerate(short_ids([each["peer_id"] for each in peers])):
        (line,) = [line for line in lines if f" {beginning} " in f" {line} "]
        assert (" anna " in line) == (at < 2)


def test_peers_truncates_a_name_only_in_the_table(terminal, node):
    told = {"name": "安" * 40, "line": "Two old laptops.", "model": "tiny", "version": "0.1.0"}
    anna, ben = meet(node, peer("anna", **told), peer("ben"))
    assert "安" * 7 in terminal.ok("peers", *AT) and "安" * 8 not in terminal.out
    assert "Two old laptops" not in terminal.out
    shown = terminal.ok("peers", anna["peer_id"], *AT).splitlines()
    assert dict(line.split(maxsplit=2)[1:] for line in shown if "its " in line) == told
    assert "its " not in terminal.ok("peers", ben["peer_id"], *AT)


@pytest.mark.parametrize(
    "text",
    [
        "\x1b]0;owned\x07",
        "one\ntwo",
        "\u202eanna",
        "[link=https://x]anna[/]",
        "\u2066a\u2069",
        "\t",
    ],
)
def test_peers_table_escapes_hostile_names(terminal, node, text):
    hostile = dict.fromkeys(("name", "line", "model", "version"), text)
    _, eve = meet(node, peer("anna", name="anna"), peer("eve", **hostile))
    for arguments in ([], [eve["peer_id"]]):
        shown = terminal.ok("peers", *arguments, *AT)
        assert all(c.isprintable() or c == "\n" for c in shown)
        (line,) = [line for line in shown.splitlines() if eve["peer_id"][:14] in line]
        assert arguments or printable(text)[:12] in line.partition("…")[2]
    assert terminal.json("peers", *AT)[1]["name"] == text


def test_rollouts_prints_latest_as_text_or_json(terminal, node):
    author = Identity.generate().author
    theirs = replace(GROUP, round=7, origin="external", author=author.hex())
    write(node.groups, [replace(GROUP, round=6), theirs])
    lines = terminal.ok("rollouts", *AT).splitlines()
    shown = [",".join(line.split(",")[:2]) for line in lines if line[0] != " "]
    peer = peer_id_of(author)
    assert shown == ["round 6, local", *2 * [f"round 7, by peer {peer[:16]}…"]]
    assert "1 + 1" in terminal.out and "\x1b" not in terminal.out
    (best,) = terminal.json("rollouts", *AT, "-n", "1")
    assert (best["completion"], best["reward"], best["author"]) == ("2", 1.0, peer)


def test_rollouts_explains_a_node_without_rounds(terminal, node):
    told = f"no rollouts yet in: {node.root}. A node writes some after its first round."
    assert terminal.refuses(1, "rollouts", *AT) == f"error: {told}"


def test_stop_succeeds_for_a_node_that_never_ran(terminal, node):
    assert terminal.ok("stop", *AT) == f"no running node in {node.root}\n"
    told = {"pid": None, "state": "stopped", "round": None, "checkpoint": None}
    assert terminal.json("stop", *AT) == told


@pytest.mark.parametrize("name", ["status.json", "lock", "checkpoints/step-00000001/state.json"])
def test_commands_refuse_fifos_and_devices_in_run_folder(terminal, node, name):
    path = node.root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    for command in ("status", "checkpoints", "stop", "trust"):
        assert "neither a file nor a folder" in terminal.refuses(1, command, *AT)
    assert terminal.json("list")["unread"]
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(NodeError, match=r"neither a file nor a folder|a link in the place"):
        read_history(node.root)


@pytest.mark.parametrize(
    "name",
    [
        "node.log",
        "metrics.jsonl",
        "journal.sqlite-wal",
        "lock",
        "swarms/other/metrics.jsonl",
        "checkpoints/a",
    ],
)
def test_commands_never_write_through_links_in_run_folder(terminal, node, name):
    other = Path("profile").absolute()
    other.touch()
    (node.root / name).parent.mkdir(parents=True, exist_ok=True)
    (node.root / name).unlink(missing_ok=True)
    (node.root / name).symlink_to(other)
    for command in ("status", "join", "bootstrap"):
        assert "a link in the place of what" in terminal.refuses(1, command, *AT)
    assert not other.read_bytes()


@pytest.mark.parametrize("name", ["checkpoints", "checkpoints/rolled-back", "tensorboard"])
def test_commands_never_modify_a_linked_folder(terminal, node, name):
    other = Path("home").absolute()
    (other / ".config-of-others").mkdir(parents=True)
    (shared := other / "page").touch()
    shared.chmod(0o644)
    (node.root / name).parent.mkdir(parents=True, exist_ok=True)
    (node.root / name).symlink_to(other)
    for command in ("status", "join", "checkpoints"):
        assert "a link in the place of what" in terminal.refuses(1, command, *AT)
    assert shared.stat().st_mode & 0o777 == 0o644 and (other / ".config-of-others").exists()


def test_trust_adds_lists_and_removes_peers(terminal, node, met):
    assert "no trusted peers" in terminal.ok("trust", *AT)
    shown = terminal.ok("trust", ANNA, f"/ip4/10.0.0.5/tcp/1/p2p/{BEN}", *AT)
    assert f"trusts {ANNA} (by swarm-node trust)" in shown and "no node runs here" in shown
    assert [each["peer_id"] for each in terminal.json("trust", *AT)] == [ANNA, BEN]
    assert " trusted " in rows(terminal, met)[0] and " trusted " not in rows(terminal, met)[1]
    with node.locked():
        assert "from its next round" in terminal.ok("trust", BEN, "--remove", *AT)
    assert terminal.json("trust", *AT) == [{"peer_id": ANNA, "by": "swarm-node trust"}]
    assert node.trusted.stat().st_mode & 0o077 == 0


def test_block_adds_lists_and_removes_peers(terminal, node, met):
    assert "no peer is blocked" in terminal.ok("block", *AT)
    shown = terminal.ok("block", ANNA, f"/ip4/10.0.0.5/tcp/1/p2p/{BEN}", *AT)
    assert f"blocks {ANNA}" in shown and "no node runs here" in shown
    assert " blocked " in rows(terminal, met)[0]
    meet(node)  # Both peers left; blocked peers still have rows.
    assert all(" blocked " in row for row in rows(terminal, [peer("anna"), peer("ben")]))
    with closing(Journal(node.journal, SystemClock())) as journal:
        Accounts(journal, SystemClock()).count_bytes(identity("cleo").author, received=7)
    assert len(terminal.json("peers", *AT)) == 2
    assert terminal.json("peers", identity("cleo").peer_id[:14], *AT)["bytes_in"] == 7
    assert terminal.json("block", BEN, "--remove", *AT) == [{"peer_id": ANNA}]
    assert "is not blocked" in terminal.refuses(2, "block", BEN, "--remove", *AT)
    assert "without a peer" in terminal.refuses(2, "block", "--undo", *AT)


def test_block_takes_precedence_over_trust(terminal, node):
    terminal.ok("trust", ANNA, *AT)
    assert f"blocks {ANNA}, although it is trusted" in terminal.ok("block", ANNA, BEN, *AT)
    refused = terminal.refuses(2, "trust", BEN, *AT)
    assert f"this peer is blocked: {BEN}. Unblock it first" in refused
    assert [each["peer_id"] for each in terminal.json("trust", *AT)] == [ANNA]


def test_a_node_neither_trusts_nor_blocks_itself(terminal, node):
    own = Identity.load(node.identity).peer_id
    for command in ("trust", "block"):
        assert "the node's own id" in terminal.refuses(2, command, own, *AT)
        assert terminal.json(command, *AT) == []


def test_trust_rejects_invalid_peers_and_files(terminal, node):
    assert "not a peer id: 12D3KooW" in terminal.refuses(2, "trust", "12D3KooW", *AT)
    assert "is not trusted" in terminal.refuses(2, "trust", ANNA, "--remove", *AT)
    assert "without a peer" in terminal.refuses(2, "trust", "--remove", *AT)
    set_keys(node.config, {"mixture.trusted": [BEN]})
    assert terminal.json("trust", *AT) == [{"peer_id": BEN, "by": "mixture.trusted"}]
    assert "mixture.trusted" in terminal.refuses(2, "trust", BEN, "--remove", *AT)
    node.trusted.write_text("# friends\nnobody\n")
    assert "Correct or remove that line" in terminal.refuses(1, "trust", *AT)


def test_status_and_stop_work_with_an_invalid_config_key(terminal, node):
    written = node.config.read_text()
    node.config.write_text(written.replace("[learner]", "[learner]\nlrx = 1"))
    for command in ("status", "stop", "logs", "rollouts", "checkpoints"):
        code = terminal(command, *AT)
        assert terminal.err.startswith("warning: learner.lrx: 1. Unknown key"), command
        assert code == 0 or "error: no " in terminal.err or command == "logs"
    assert terminal.refuses(2, "join", *AT).startswith("error: learner.lrx")
    node.config.write_text("[learner")
    assert terminal.refuses(2, "status", *AT).startswith("error: ")
