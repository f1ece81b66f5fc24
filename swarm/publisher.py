"""Gives to the swarm: seals waiting groups into frames and announces them."""

from __future__ import annotations

import logging
from dataclasses import replace
from itertools import groupby

from protocol.announcement import offer_of
from protocol.codec import MAX_OFFERS, PLAIN_RATIO
from protocol.errors import ProtocolError
from protocol.frame import Packing, check_group, pack, seal, without_tokens
from protocol.rollout import Batch, Group
from swarm.common.clock import Clock
from swarm.common.counters import Counters
from swarm.directory import Directory
from swarm.journal import Journal
from swarm.origin import Origin
from swarm.outbox import Outbox, Waiting

logger = logging.getLogger(__name__)

MAX_OUTBOX_BYTES = 64 << 20
MAX_ANNOUNCEMENTS = 4
"""An epoch: storing one costs the network a search for its place, whatever it holds."""


class Publisher:
    """The giving half of a member. At most four frames an epoch, for a record offers no more.

    Attributes:
        filled: set by the outbox when there is something to publish.
    """

    def __init__(
        self,
        directory: Directory,
        outbox: Outbox,
        journal: Journal,
        clock: Clock,
        counters: Counters,
    ) -> None:
        self.filled = outbox.filled
        self._directory = directory
        self._outbox = outbox
        self._journal = journal
        self._clock = clock
        self._counters = counters
        self._epoch = -1
        self._frames_left = 0
        self._announcements_left = 0
        self._announced = False
        self._policy_step = 0

    async def publish(self) -> bool:
        """Seal what waits; announce when there is news, and once in every epoch.

        Returns:
            Whether there was news, so that the next should wait for its turn.

        Raises:
            JournalError
        """
        if self._epoch != self._directory.epoch:
            self._epoch = self._directory.epoch
            self._frames_left = MAX_OFFERS
            self._announcements_left = MAX_ANNOUNCEMENTS
            self._announced = False
            self._prune()
        if not self._announcements_left:
            return False
        news = self._seal_waiting() > 0
        if news or not self._announced:
            self._announcements_left -= 1
            self._announced = False
            self._announced = await self._directory.announce(
                self._outbox.offers(MAX_OFFERS), self._policy_step, self._journal.next_sequence()
            )
        return news

    def _prune(self) -> None:
        manifest = self._directory.manifest
        self._outbox.prune(
            oldest_epoch=self._epoch - manifest.max_age_epochs,
            oldest_frame=self._clock.time() - manifest.max_age_epochs * manifest.epoch_seconds,
            max_bytes=MAX_OUTBOX_BYTES,
        )

    def _seal_waiting(self) -> int:
        """Frames sealed now; the youngest groups go where not all find room.

        Groups of several policy versions share a frame, for a quick node goes through many of
        them between two turns; every token carries its own version.
        """
        before = self._frames_left
        if not before:
            return 0
        room = before * PLAIN_RATIO * self._directory.manifest.max_frame_bytes
        within = self._within_manifest(self._outbox.take(room))
        runs = [list(run) for _, run in groupby(within, lambda w: replace(w.origin, policy_step=0))]
        if runs:
            self._policy_step = max(w.origin.policy_step for w in runs[-1])
        for run in reversed(runs):
            if not self._frames_left:
                break
            step = max(w.origin.policy_step for w in run)
            self._seal_run(replace(run[0].origin, policy_step=step), run)
        return before - self._frames_left

    def _within_manifest(self, waiting: list[Waiting]) -> list[Waiting]:
        """Those that others do not refuse with the whole frame, and with a strike; no others wait
        any longer."""
        refused: dict[int, ProtocolError] = {}
        for each in waiting:
            try:
                check_group(each.group, self._directory.manifest)
            except ProtocolError as error:
                refused[each.number] = error
        if refused:
            logger.warning(
                "%d groups are not shared, as this swarm's manifest allows no such: %s; lower "
                "engine.max_new_tokens or engine.group_size, or train in a swarm founded with "
                "larger --answer-tokens and --group-size",
                len(refused),
                next(iter(refused.values())),
            )
            self._counters.add("outbox_dropped", len(refused), reason="over_manifest")
            self._outbox.drop(refused)
        return [each for each in waiting if each.number not in refused]

    def _seal_run(self, origin: Origin, run: list[Waiting]) -> None:
        numbers = {(w.group.epoch, w.group.index): w.number for w in run}
        packing = self._pack([waiting.group for waiting in run])
        for groups in packing.frames[-self._frames_left :]:
            self._seal(origin, groups, [numbers[g.epoch, g.index] for g in groups])
        if packing.oversize:
            logger.warning("%d groups fit into no frame and are not shared", len(packing.oversize))
            self._counters.add("outbox_dropped", len(packing.oversize), reason="group_oversize")
            self._outbox.drop(numbers[g.epoch, g.index] for g in packing.oversize)

    def _pack(self, groups: list[Group]) -> Packing:
        """Whole groups where they fit; text alone where token ids are what makes one too large."""
        limit = self._directory.manifest.max_frame_bytes
        packing = pack(groups, limit)
        if not packing.oversize:
            return packing
        bare = pack(map(without_tokens, packing.oversize), limit)
        if count := len(packing.oversize) - len(bare.oversize):
            logger.warning(
                "%d groups are shared without token ids and log-probs, with which they fit into "
                "no frame of %d bytes: their answers are too long, or too many",
                count,
                limit,
            )
            self._counters.add("groups_without_tokens", count)
        return Packing(packing.frames + bare.frames, bare.oversize)

    def _seal(self, origin: Origin, groups: tuple[Group, ...], numbers: list[int]) -> None:
        created = self._clock.time()
        batch = Batch(
            sequence=self._journal.next_sequence(),
            policy_step=origin.policy_step,
            created=created,
            model=origin.model,
            encoding=origin.encoding,
            temperature=origin.temperature,
            max_new_tokens=origin.max_new_tokens,
            groups=groups,
        )
        try:
            frame = seal(batch, self._directory.identity, self._directory.swarm_id)
            offer = offer_of(frame, batch, self._directory.manifest)
        except ProtocolError:
            logger.exception("groups that the protocol refuses are not shared")
            self._counters.add("outbox_dropped", len(groups), reason="group_refused")
            self._outbox.drop(numbers)
            return
        self._outbox.keep(offer, frame, created, numbers)
        self._frames_left -= 1
        self._counters.add("frames_sealed")
