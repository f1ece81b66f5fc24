"""An environment of one's own: walk through a row of rooms to the one where the treasure is."""

import random


class Treasure:
    """Takes ``w`` or ``e``; tells whether that came nearer. Worth 1 where the treasure is found."""

    replayable = True  # the same seed, settings and actions always give the same

    def reset(self, seed: int, *, rooms: int = 5, turns: int = 6) -> str:
        """A house of so many rooms; where the treasure is does not follow from what is said."""
        rng = random.Random(f"treasure/{seed}")
        self.here, self.treasure = rng.sample(range(rooms), 2)
        self.rooms, self.left = rooms, turns
        return f"At house {rng.randrange(1000)} room {self.here}"

    def step(self, action: str) -> tuple[str, bool]:
        """Walk; against a wall, or where something else is said, one stays."""
        before = abs(self.here - self.treasure)
        walked = {"w": -1, "e": 1}.get(action, 0)
        self.here = min(max(self.here + walked, 0), self.rooms - 1)
        self.left -= 1
        now = abs(self.here - self.treasure)
        told = "warmer" if now < before else "colder"
        return f"{told} room {self.here}", not now or not self.left

    def reward(self) -> float:
        """Whether it was found."""
        return float(self.here == self.treasure)
