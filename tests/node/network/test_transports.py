"""What a transport needs is looked for before it is opened."""

from __future__ import annotations

import pytest

from node.config.config import Config
from node.config.registry import TRANSPORTS
from node.demo.run import SEED, DemoSettings
from node.errors import ConfigError
from node.network.transports import check_transport, why_not_free


def network(**keys: object):
    return Config.with_overrides({f"network.{key}": value for key, value in keys.items()}).network


@pytest.mark.parametrize("name", ["hivemind", "libp2p"])
def test_a_transport_whose_package_is_missing_says_what_to_install(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node.network.transports.find_spec", lambda package: None)
    with pytest.raises(ConfigError, match=rf"network.transport: '{name}'.*swarm-node\[libp2p\]"):
        check_transport(network(transport=name))


def test_both_transports_are_known_and_take_turns_in_a_mixed_demo() -> None:
    assert set(TRANSPORTS.own) == {"hivemind", "libp2p"}
    mixed = DemoSettings(nodes=4, transport="mixed")
    assert mixed.transport_of(SEED) == "hivemind"
    assert [mixed.transport_of(n) for n in range(4)] == ["libp2p", "hivemind"] * 2
    assert DemoSettings(transport="libp2p").transport_of(SEED) == "libp2p"


def test_a_machine_without_the_family_of_an_address_says_so(monkeypatch) -> None:
    def no_family(*_: object) -> None:
        raise OSError(97, "Address family not supported by protocol")

    monkeypatch.setattr("node.network.transports.socket.socket", no_family)
    assert why_not_free("/ip6/::1/tcp/31337") == "Address family not supported by protocol"
