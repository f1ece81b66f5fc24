"""What a transport may stand on, for tests that try both."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec

import pytest

from swarm.transport.apart.transport import ApartTransport
from swarm.transport.hivemind.transport import HivemindTransport
from swarm.transport.libp2p.transport import Libp2pTransport

INSTALLED = pytest.mark.skipif(
    find_spec("libp2p") is None, reason="needs libp2p: pip install 'swarm-node[libp2p]'"
)
OVER = pytest.mark.parametrize(
    "over", [HivemindTransport, pytest.param(Libp2pTransport, marks=INSTALLED)]
)
APART_LIBP2P = pytest.param(
    partial(ApartTransport, over=Libp2pTransport), marks=INSTALLED, id="ApartLibp2pTransport"
)
