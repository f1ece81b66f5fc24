"""Screenshots for the documents; ``make pictures`` stores them in docs/pictures."""

import io
import math
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from node.monitor.groups import Origin, ShownCompletion, ShownGroup, ShownTokens
from node.storage.run_folder import RunFolder
from tests.dashboard.made_run import AUTHORS, PEERS
from tests.node.dashboard.browser import served, write_rounds

pytestmark = pytest.mark.browser

KEPT = Path(__file__).resolve().parents[2] / "docs" / "pictures"
MAX_BYTES = 60_000
COLOURS = 96
TINTED = """
[...document.querySelectorAll('button')].find((b) => b.innerText === 'log-prob')?.click();
"""
ROUNDS = 400
START = 1.79e9


def rising(top: float, rounds: float, wave: float = 0.0) -> Callable[[int], float]:
    """Return a curve that approaches ``top``, with noise like that of varying tasks."""
    return lambda n: top * (1 - math.exp(-n / rounds)) + wave * math.sin(1.7 * n) * math.sin(n)


def fill(folder: RunFolder) -> None:
    alice, bob, carol = AUTHORS
    write_rounds(
        folder,
        range(1, ROUNDS + 1),
        time=lambda n: START + 9 * n,
        reward_local=rising(0.71, 150, 0.06),
        reward_external=rising(0.62, 110, 0.05),
        reward_eval=lambda n: rising(0.66, 170)(n) if n % 20 == 1 else None,
        informative_local=lambda n: 0.35 + 0.3 * math.exp(-n / 300) + 0.05 * math.sin(1.3 * n),
        entropy=lambda n: 0.5 + 1.6 * math.exp(-n / 180),
        peer_advantage=lambda n: 0.08 * math.exp(-n / 120),
        mean_length=lambda n: 21 + 3 * math.sin(n / 40),
        unproven_share=lambda n: 0.12 + 0.1 * math.exp(-n / 90),
        largest_share=0.25,
        clip_fraction=lambda n: 0.04 * math.exp(-n / 250),
        masked_fraction=0.01,
        truncated=lambda n: 0.2 * math.exp(-n / 130),
        groups_local=4,
        groups_external=lambda n: 6 + n % 3,
        authors=lambda n: {alice: 3, bob: 2 + n % 2, carol: 1 + n % 3 // 2},
        levels=lambda n: {
            "sorting/0": rising(0.93, 60, 0.03)(n),
            "sorting/1": rising(0.7, 160, 0.03)(n),
            "gcd/1": rising(0.55, 220, 0.03)(n),
        },
    )
    groups = [group(n, origin) for n in range(8) for origin in ("refused", "external", "own")]
    lines = [each.line(at + 1) for at, each in enumerate(groups)]
    folder.groups.write_bytes(b"".join(lines))


def group(at: int, origin: Origin) -> ShownGroup:
    one, other = 12 + 6 * at, 18 + 4 * at
    right = math.gcd(one, other)
    reason = "Its reward is not what this node's verifier says." if origin == "refused" else None
    return ShownGroup(
        round=ROUNDS - 8 + at,
        time=time.time() - 600,
        origin=origin,
        env="gcd",
        level=1,
        author=None if origin == "own" else AUTHORS[at % len(AUTHORS)],
        prompt=f"Find the greatest common divisor of {one} and {other}.\nAnswer:",
        in_update=origin != "refused",
        reason=reason,
        completions=[answer(right * part, int(part == 1)) for part in (1, 3, 1, 5)],
    )


def answer(said: int, reward: int) -> ShownCompletion:
    words = (" Both", " are", " divided", " by", f" {said}", ".")
    probs = (-0.4, -0.02, -1.3, -0.05, -0.2 if reward else -3.1, -0.01)
    tokens = ShownTokens(words, probs, (ROUNDS,) * len(words))
    return ShownCompletion("".join(words), float(reward), reward - 0.5, False, tokens)


def small(picture: bytes) -> bytes:
    packed = io.BytesIO()
    image = Image.open(io.BytesIO(picture)).convert("RGB")
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(packed, "PNG", optimize=True)
    return packed.getvalue()


@pytest.mark.parametrize(
    ("view", "shown"),
    [
        ("learning", "return document.querySelectorAll('.chart canvas').length >= 15"),
        ("rollouts", "return document.querySelectorAll('pre .token').length === 24"),
    ],
)
def test_docs_screenshot_keeps_its_size_and_is_small(browser, pictures, tmp_path, view, shown):
    folder = RunFolder(tmp_path / "run").create()
    fill(folder)
    about = {"peers": [], "peer_id": PEERS[0], "swarm_name": "sorting together", "time": START}
    with folder.locked(), served(folder.root) as site:
        folder.write_status({**about, "state": "running", "pid": folder.holder()})
        browser.open(site.told[-1], view)
        browser.theme("light")
        browser.until(TINTED + shown)
        browser.run("document.activeElement.blur()")
        path = pictures / f"dashboard-{view}.png"
        browser.picture(path)
        assert browser.errors() == []
    path.write_bytes(small(path.read_bytes()))
    assert path.stat().st_size < MAX_BYTES
    kept = Image.open(KEPT / path.name)
    assert kept.size == Image.open(path).size, "the picture is outdated; run make pictures"
