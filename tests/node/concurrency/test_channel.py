from __future__ import annotations

import socket
import threading

import pytest

from node.concurrency.channel import Channel, ChannelError


@pytest.fixture
def sockets() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair()


@pytest.fixture
def ends(sockets) -> tuple[Channel, Channel]:
    one, other = sockets
    return Channel(one), Channel(other)


def test_after_it_was_closed_the_other_side_counts_as_gone_from_both_ends(ends):
    here, there = ends
    here.close()
    for end in ends:
        with pytest.raises(ChannelError, match="gone"):
            end.receive()
        with pytest.raises(ChannelError, match="gone"):
            end.send({"word": 1})
    there.close()


def test_closing_ends_a_wait_for_a_message_and_a_wait_to_be_read(sockets, ends):
    here, there = ends
    errors = []

    def receive() -> None:
        with pytest.raises(ChannelError) as caught:
            here.receive()
        errors.append(caught.value)

    def send() -> None:
        with pytest.raises(ChannelError) as caught:
            here.send({"text": "x" * (8 << 20)})
        errors.append(caught.value)

    threads = [threading.Thread(target=work) for work in (receive, send)]
    for thread in threads:
        thread.start()
    # The first bytes have arrived, so the sender waits for the rest to be read.
    assert sockets[1].recv(1)
    here.close()
    for thread in threads:
        thread.join(20)
    assert len(errors) == 2
    there.close()
