"""``python -m tests.routers.name_server IP NAME=TEXT…`` serves TXT records.

It answers DNS queries (RFC 1035); other names do not exist. It prints a line once it listens."""

import socket
import struct
import sys
from collections.abc import Mapping, Sequence

PORT = 53
TXT, INTERNET = 16, 1
ANSWER, NO_SUCH_NAME = 0x8580, 0x8583
"""Flags of an authoritative, recursive answer, and the code for an unknown name."""


def answer(query: bytes, records: Mapping[str, Sequence[str]]) -> bytes:
    labels, at = [], 12
    while length := query[at]:
        labels.append(query[at + 1 : at + 1 + length].decode())
        at += 1 + length
    question = query[12 : at + 5]
    kind, _ = struct.unpack("!HH", question[-4:])
    texts = records.get(".".join(labels).lower())
    told = texts if texts and kind == TXT else ()
    flags = ANSWER if texts else NO_SUCH_NAME
    response = query[:2] + struct.pack("!HHHHH", flags, 1, len(told), 0, 0) + question
    for text in told:
        data = bytes([len(text)]) + text.encode()
        response += struct.pack("!HHHIH", 0xC00C, TXT, INTERNET, 60, len(data)) + data
    return response


def serve(ip: str, lines: Sequence[str]) -> None:
    records: dict[str, list[str]] = {}
    for line in lines:
        name, _, text = line.partition("=")
        records.setdefault(name, []).append(text)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as port:
        port.bind((ip, PORT))
        print("listening", flush=True)
        while True:
            query, asker = port.recvfrom(4096)
            port.sendto(answer(query, records), asker)


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2:])
