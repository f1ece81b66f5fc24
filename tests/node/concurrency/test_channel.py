from __future__ import annotations

import socket
import threading

import pytest

from node.concurrency.channel import MAX_MESSAGE_BYTES, Channel, ChannelError, packed


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


def test_what_has_arrived_is_taken_whole_and_nothing_is_waited_for(sockets, ends):
    here, there = ends
    assert here.arrived() == []
    there.send({"word": 1})
    there.send({"word": 2})
    message = packed({"word": "three"})
    sockets[1].sendall(message[:-1])
    assert here.arrived() == [{"word": 1}, {"word": 2}]
    assert here.arrived() == []
    sockets[1].sendall(message[-1:])
    assert here.arrived() == [{"word": "three"}]
    there.close()
    with pytest.raises(ChannelError, match="gone"):
        here.arrived()
    here.close()


def test_a_wait_that_ends_in_the_middle_of_a_message_loses_none_of_it(sockets, ends):
    here, _ = ends
    message = packed({"word": "x" * 100})
    for part in (message[:2], message[2:9], message[9:50]):
        sockets[1].sendall(part)
        with pytest.raises(TimeoutError):
            here.receive(0.01)
    sockets[1].sendall(message[50:])
    assert here.receive() == {"word": "x" * 100}
    for end in ends:
        end.close()


def test_a_message_that_is_larger_than_any_is_neither_sent_nor_waited_for(sockets, ends):
    here, there = ends
    with pytest.raises(ValueError, match="at most"):
        there.send({"text": "x" * MAX_MESSAGE_BYTES})
    sockets[1].sendall((MAX_MESSAGE_BYTES + 1).to_bytes(4, "little"))
    with pytest.raises(ChannelError, match="at most"):
        here.arrived()
    for end in ends:
        end.close()
