import decimal
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy
import pytest

from node.tasks.sources.reasoning_gym import UNREPEATABLE
from node.tasks.task import seeded
from node.tasks.task_set import Allowed, open_envs
from node.tasks.verifier.worker_process import worker_environment
from protocol.manifest import EnvSpec

PROBE = Path(__file__).with_name("repeat_probe.py")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Digests of two processes in a temporary folder: some questions write files."""
    folder = tmp_path_factory.mktemp("families")
    started = [
        subprocess.Popen(
            [sys.executable, str(PROBE), noise],
            env={**worker_environment(), "PYTHONPATH": os.pathsep.join(sys.path)},
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for noise in ("one", "other")
    ]
    outputs = [process.communicate(timeout=600)[0] for process in started]
    return [json.loads(output.splitlines()[-1]) for output in outputs]


def test_unrepeatable_list_matches_the_families_that_differ(found):
    one, other = found
    assert len(one) == 105, "all families of the library are tested"
    assert {family for family in one if one[family] != other[family]} == UNREPEATABLE


@pytest.mark.parametrize("family", sorted(UNREPEATABLE))
def test_open_envs_skips_unrepeatable_families(family):
    spec = EnvSpec(family, "reasoning-gym", "0.1.25", ("{}",), "{question}", "text")
    assert open_envs([spec], Allowed(code_execution=[family]))[0] == {}


def test_seeded_restores_random_generators_and_decimal_precision():
    random.seed(1)
    numpy.random.seed(1)
    wanted = random.random(), numpy.random.random()
    random.seed(1)
    numpy.random.seed(1)
    with seeded("gcd", 0, 7):
        inside = random.random(), numpy.random.random()
    assert (random.random(), numpy.random.random()) == wanted
    with seeded("gcd", 0, 7):
        assert (random.random(), numpy.random.random()) == inside
    with seeded("gcd", 0, 8):
        assert (random.random(), numpy.random.random()) != inside
        decimal.getcontext().prec = 6
        with seeded("gcd", 0, 7):
            assert decimal.Decimal(1) / 3 == decimal.Decimal("0." + 28 * "3")
    assert decimal.getcontext().prec == 28
