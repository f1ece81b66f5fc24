"""Engine process: ``python -m node.engines.process.worker``.

It reads messages from the socket that is its standard input, and exits when that closes. The first
message holds the backend's settings, later ones ``requests``, ``abort``, ``update``, ``pause`` or
``sleep``. It sends ``ready`` once, then what was ``written``, and ``done`` with the number of each
pause and sleep. Before it dies it sends how it ``failed`` and whether that names a ``remedy``. It
sends ``alive`` while it works, and ``idle`` with the number of handled messages before it waits.
"""

from __future__ import annotations

import os
import queue
import shutil
import signal
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import astuple
from typing import Any

from node.config.registry import ENGINES
from node.engines.engine import Backend, BackendSettings, Request, RequestOutput
from node.engines.kinds import EngineKind
from node.engines.process.child import PULSE_SECONDS
from node.errors import NodeError
from swarm.common.child_process import Channel, ChannelError, take_over_stdin

Open = Callable[[BackendSettings], Backend]
FAILED = 1
FAILURE_CHARACTERS = 500


def open_backend(settings: BackendSettings) -> Backend:
    kind: EngineKind = ENGINES.load(settings.backend)()
    return kind.backend(settings)


def serve(opener: Open) -> None:
    """Run the backend until the owner's end of the socket closes."""
    # The owner handles the signal and needs this process until it is done. Not SIG_IGN, because
    # child processes would inherit it.
    signal.signal(signal.SIGTERM, lambda *_: None)
    channel = take_over_stdin()
    # Libraries' prints go to stderr, from which the owner reads the last message.
    os.dup2(2, 1)
    inbox: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    first = channel.receive()
    settings = BackendSettings(**{**first, "stop_ids": tuple(first["stop_ids"])})
    threading.Thread(target=_read, args=(channel, inbox, settings.folder), daemon=True).start()
    try:
        backend = opener(settings)
        channel.send({"ready": True})
        _work(channel, inbox, backend)
    except ChannelError:
        _leave(settings.folder)
    except BaseException as error:  # noqa: BLE001 - reported to the owner, which continues without it
        traceback.print_exc()
        has_remedy = isinstance(error, NodeError)
        message = str(error) if has_remedy else f"{type(error).__name__}: {error}"
        failure = " ".join(message.split())[:FAILURE_CHARACTERS]
        channel.send({"failed": failure, "remedy": has_remedy})
        os._exit(FAILED)


def _work(channel: Channel, inbox: queue.SimpleQueue[dict[str, Any]], backend: Backend) -> None:
    num_handled = 1  # the settings
    last_message = time.monotonic()
    while True:
        if inbox.empty() and backend.busy:
            _report(channel, backend.step())
        else:
            if inbox.empty():
                channel.send({"idle": num_handled})
            _handle(inbox.get(), backend, channel)
            num_handled += 1
        # Sent from this loop, not from a thread, so that a hang stops the pulse.
        if time.monotonic() - last_message >= PULSE_SECONDS:
            channel.send({"alive": True})
            last_message = time.monotonic()


def _handle(message: dict[str, Any], backend: Backend, channel: Channel) -> None:
    if "requests" in message:
        backend.submit([Request(n, tuple(ids), *rest) for n, ids, *rest in message["requests"]])
    elif "abort" in message:
        backend.abort(message["abort"])
    elif "update" in message:
        _report(channel, backend.update())
    elif "pause" in message:
        _report(channel, backend.pause())
        channel.send({"done": message["pause"]})
    else:
        backend.sleep()
        channel.send({"done": message["sleep"]})


def _report(channel: Channel, outputs: list[RequestOutput]) -> None:
    if outputs:
        channel.send({"written": [astuple(output) for output in outputs]})


def _read(channel: Channel, inbox: queue.SimpleQueue[dict[str, Any]], folder: str) -> None:
    """Receive messages while the backend works, so that neither side blocks."""
    while True:
        try:
            inbox.put(channel.receive())
        except ChannelError:
            _leave(folder)


def _leave(folder: str) -> None:
    """Exit, and remove what a killed owner left in shared memory."""
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


if __name__ == "__main__":
    serve(open_backend)
