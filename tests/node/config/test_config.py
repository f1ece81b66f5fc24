import os
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.config.config import COMMON, Config, build, load, run_folder, write_config
from node.config.overrides import parse_assignments
from node.errors import ConfigError, NodeError

PEER = "12D3KooWQYhTNQdmr3ArTeUHRYzFg94BKyTkoWBDWez9kSCVe2Xo"


def test_full_config_explains_every_key_and_round_trips(tmp_path):
    keys = {"node.name": "bench 1", "learner.lr": 1e-5, "monitor.live": False}
    keys |= {"network.peers": [f"/ip4/127.0.0.1/tcp/4001/p2p/{PEER}"]}
    keys |= {"profile.name": "Анна 安娜", "profile.line": "ça va? 🦊"}
    config = Config.with_overrides({**keys, "tasks.weights": {"chain_sum": 2.0, 'od"d': 0.5}})
    write_config(tmp_path / "node.toml", config, full=True)
    assert load(tmp_path / "node.toml") == config
    text = (tmp_path / "node.toml").read_text()
    for name, section in Config.model_fields.items():
        assert f"[{name}]" in text
        for key, field in section.annotation.model_fields.items():
            assert f"\n{key} = " in text
            assert field.description


def test_short_config_keeps_relevant_keys_and_round_trips(tmp_path):
    path = tmp_path / "node.toml"
    config = Config.with_overrides({"learner.epochs": 2, "sandbox.network": ["maze"]})
    write_config(path, config, ["engine.temperature", "learner.lr"])
    assert load(path) == config
    written = tomllib.loads(path.read_text())
    names = {f"{section}.{key}" for section, keys in written.items() for key in keys}
    assert names == {*COMMON, "learner.epochs", "sandbox.network", "engine.temperature"}
    assert "swarm-node init --full" in path.read_text().splitlines()[1]


def test_config_error_quotes_description_and_range_of_a_key():
    for name, section in Config():
        for key, field in type(section).model_fields.items():
            with pytest.raises(ConfigError) as caught:
                Config.with_overrides({f"{name}.{key}": object()})
            about = caught.value.remedy.partition(". ")[2].partition(" (Allowed: ")[0]
            about = about.partition(" (Default: ")[0]
            assert 1 <= len(about.split()) <= 25, (key, about)
            assert about.rstrip(".…") in field.description
    with pytest.raises(ConfigError) as caught:
        Config.with_overrides({"learner.lr": "high"})
    assert caught.value.remedy == (
        "It should be a number. Learning rate of AdamW, by the number of parameters. "
        "(Allowed: number, above 0, at most 1. Default: 0.0003.)"
    )


def test_union_type_error_names_all_types_once():
    with pytest.raises(ConfigError) as caught:
        Config.with_overrides({"monitor.dashboard": 3})
    assert caught.value.key == "monitor.dashboard"
    assert caught.value.remedy.startswith('It should be true, false or "host:port". Address of')
    assert "more to correct" not in caught.value.remedy


def test_short_config_explains_each_key_in_one_sentence(tmp_path):
    write_config(tmp_path / "node.toml", Config())
    text = (tmp_path / "node.toml").read_text()
    for place in COMMON:
        section, key = place.split(".")
        about = Config.model_fields[section].annotation.model_fields[key].description
        comment = text[: text.index(f"\n{key} = ")].rpartition("\n\n")[2]
        assert " ".join(comment.replace("# ", "").split()).startswith(about.split(".")[0])
    assert len(text.splitlines()) < 80


@given(st.dictionaries(st.text(st.characters(codec="utf-8"), min_size=1), st.floats(0.1, 9)))
def test_any_weights_table_round_trips(tmp_path_factory, weights):
    path = tmp_path_factory.mktemp("config") / "node.toml"
    config = build({"tasks": {"weights": weights}})
    write_config(path, config)
    assert load(path) == config


@pytest.mark.parametrize(
    ("assignment", "key", "remedy"),
    [
        ("learner.lr=-1", "learner.lr", "greater than 0"),
        ("learner.betas=[1.0, 0.9]", "learner.betas", "less than 1"),
        ("node.seed=1.5", "node.seed", "integer"),
        ("node.name.first=a", "node.name", "text"),
        ("network.swarm=1234567", "network.swarm", "at least the first 8"),
        ("engine.data_parallel_size=2", "engine.data_parallel_size", "engine.backend = 'vllm'"),
        ("engine.gpu_memory_utilization=0", "engine.gpu_memory_utilization", "greater than 0"),
        ("mixture.local=-2", "mixture.local", "greater than or equal to 0"),
        ("mixture.pool_groups=2", "mixture.pool_groups", "mixture.external"),
        ("engine.max_turn_tokens=65", "engine.max_turn_tokens", "engine.max_new_tokens = 64"),
        ("schedule.max_staleness=-1", "schedule.max_staleness", "greater than or equal to 0"),
        ("tasks.weights={chain_sum = 0}", "tasks.weights", "positive weight"),
    ],
)
def test_invalid_value_error_names_key_and_fix(assignment, key, remedy):
    with pytest.raises(ConfigError) as caught:
        build({}, parse_assignments([assignment]))
    assert caught.value.key.startswith(key) and remedy in caught.value.remedy
    assert "\n" not in str(caught.value)


def test_config_error_counts_mistakes():
    for wrong in ({"learner.lr": -1, "node.sed": 3}, {"learner.betas": [2, 2]}):
        with pytest.raises(ConfigError, match="1 more to correct"):
            Config.with_overrides(wrong)


def test_invalid_list_item_counts_as_one_mistake():
    with pytest.raises(ConfigError, match=r"learner\.betas\.1: 2\. It should be less") as caught:
        Config.with_overrides({"learner.betas": [0.9, 2]})
    assert "more to correct" not in str(caught.value)


def test_overrides_accept_toml_values_or_plain_text():
    pairs = ["learner.lr=1e-5", "policy.model=Qwen/Qwen3-0.6B", "tasks.weights.gcd=2.0"]
    pairs += ["network.swarm=12345678"]
    config = build({"tasks": {"weights": {"lcm": 1.0}}}, parse_assignments(pairs))
    assert (config.learner.lr, config.policy.model) == (1e-5, "Qwen/Qwen3-0.6B")
    assert config.tasks.weights == {"lcm": 1.0, "gcd": 2.0} and config.network.swarm == "12345678"
    for pair in ("learner.lr", "lr=1", "=1"):
        with pytest.raises(ConfigError, match=r"section\.key=value"):
            parse_assignments([pair])


def test_load_reports_missing_and_invalid_config_files(tmp_path):
    path = tmp_path / "node.toml"
    with pytest.raises(NodeError, match="swarm-node init"):
        load(path)
    deep = b"a={a=" * 3000, b"a" + b" . 'a'" * 50_000 + b"=1"
    for content in (b"[node\n", b"\xff\xfe", b"a = " + b"1" * 5000, *deep):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=r"node\.toml"):
            load(path)
    for section, line in (("node", "run_dir = {}"), ("tasks", "files = {{ x = {} }}")):
        for place in ('"a\\u0000b"', '"~no-such-user/x"'):
            path.write_text(f"[{section}]\n{line.format(place)}\n")
            with pytest.raises(ConfigError, match=rf"{section}\..*Write another path"):
                run_folder(path, load(path))
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(NodeError, match="not a file"):
        load(path)
    path.unlink()
    path.write_text("\ufeff[learner]\nlr = 1e-4\n", encoding="utf-8")
    assert load(path).learner.lr == 1e-4, "a byte-order mark is ignored"


def test_paths_are_relative_to_the_config_file(tmp_path, monkeypatch):
    home = tmp_path / "home"
    (home / "model").mkdir(parents=True)
    (home / "model" / "config.json").write_text("{}")
    (home / "node.toml").write_text(
        '[node]\nrun_dir = "run"\n[policy]\nmodel = "model"\n[tasks]\nfiles = {mine = "q.jsonl"}\n'
    )
    monkeypatch.chdir(tmp_path)
    config = load(Path("home/node.toml"))
    assert config.policy.model == str(home / "model")
    assert config.tasks.files == {"mine": str(home / "q.jsonl")}
    assert run_folder(Path("home/node.toml"), config).root == home / "run"


@pytest.mark.parametrize(
    ("mode", "kind", "overlaps"),
    [
        ("auto", "transformers", False),
        ("auto", "vllm", True),
        ("async", "transformers", True),
        ("sync", "vllm", False),
    ],
)
def test_engine_decides_the_schedule_mode_by_default(mode, kind, overlaps):
    config = Config.with_overrides({"schedule.mode": mode, "engine.backend": kind})
    assert config.asynchronous is overlaps


@pytest.mark.parametrize("text", ["12345678", "12e45678", "0123", "1_000", "true", "2026-01-01"])
def test_override_of_a_text_key_stays_text(text):
    overrides = parse_assignments([f"policy.model={text}", "schedule.rounds=7"])
    assert overrides == {"policy.model": text, "schedule.rounds": 7}
    assert parse_assignments([f'policy.model="{text}"']) == {"policy.model": text}


@pytest.mark.parametrize(
    "address",
    [
        f"/dns4/seed.example.org/tcp/31337/p2p/{PEER}",
        f"/dns6/seed.example.org/tcp/31337/p2p/{PEER}",
        f"/dnsaddr/example.org/p2p/{PEER}",
        f"/ip6/2001:db8::7/tcp/31337/p2p/{PEER}",
        f"/ip4/203.0.113.7/tcp/31337/p2p/{PEER}/p2p-circuit/p2p/{PEER}",
    ],
)
def test_peers_accept_dns_ip_and_relay_addresses(address):
    assert Config.with_overrides({"network.peers": [address]}).network.peers == (address,)
    for key in ("network.listen", "network.announce_maddrs"):
        with pytest.raises(ConfigError, match="multiaddress"):
            Config.with_overrides({key: [f"/dnsaddr/example.org/p2p/{PEER}"]})


def test_peer_address_errors_distinguish_missing_and_bad_id():
    for of, why in (("", "Add /p2p/ and the peer's id"), (f"/p2p/{PEER[:-4]}", "Correct the peer")):
        with pytest.raises(ConfigError, match=why):
            Config.with_overrides({"network.peers": [f"/ip4/203.0.113.7/tcp/31337{of}"]})


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("name", "n" * 49, "49 characters, limit 48"),
        ("name", "an\nna", "U\\+000A shows nothing"),
        ("line", "l" * 161, "161 characters, limit 160"),
        ("line", "\u2067anna", "U\\+2067 shows nothing"),
        ("line", " anna", "blanks at its ends"),
    ],
)
def test_config_rejects_profiles_that_peers_would_reject(key, value, why):
    with pytest.raises(ConfigError, match=f"^profile.{key}: .*{why}.*write up to") as caught:
        Config.with_overrides({f"profile.{key}": value})
    assert caught.value.key == f"profile.{key}" and str(caught.value).isprintable()
