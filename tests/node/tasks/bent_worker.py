"""A compromised worker: the last action of a turn determines its replies."""

import contextlib
import os

from swarm.common.child_process import ChannelError, take_over_stdin

ANSWER = {"observation": "1 bent", "over": False, "reward": None}


def main() -> None:
    with contextlib.suppress(ChannelError):
        serve()


def serve() -> None:
    channel = take_over_stdin()
    channel.receive()  # limits
    opened = {"levels": 1, "replayable": True, "waits": False}
    names = [spec["name"] for spec in channel.receive()["specs"]]
    channel.send({"envs": dict.fromkeys(names, opened), "closed": {}})
    while True:
        request = channel.receive()
        number, word = request["turn"], request["actions"][-1]
        if word == "leave":
            os._exit(3)
        channel.send({"at": number})
        answer = {"turn": number, **ANSWER}
        replies = {
            "twice": [answer, {**answer, "observation": "again"}],
            "unasked": [{**answer, "turn": number + 1000}],
            "nobody": [{**answer, "turn": None}],
            "nowhere": [{"at": "somewhere"}],
            "no text": [{**answer, "observation": 7}],
            "no end": [{**answer, "over": 1}],
            "much": [{**answer, "reward": 2.0}],
            "blame": [{"turn": number, "refused": "bad_signature", "detail": "owned"}],
        }
        for each in replies.get(word, [answer]):
            channel.send(each)


if __name__ == "__main__":
    main()
