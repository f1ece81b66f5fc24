"""Name the dependencies, two of which an installation from this tree takes from the tree.

reasoning-gym requires pycosat, and libp2p requires fastecdsa. PyPI has both as C source only, so a
machine without a compiler could install neither. ``install/`` has stand-ins on top of libraries
with wheels. A built distribution cannot name a folder: it leaves both to PyPI.
"""

from __future__ import annotations

from pathlib import Path

from setuptools import setup

TREE = Path(__file__).resolve().parent
IS_DISTRIBUTION = (TREE / "PKG-INFO").exists()
STAND_INS = () if IS_DISTRIBUTION else ("fastecdsa", "pycosat")

required = [
    line
    for line in (TREE / "requirements.txt").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
]
setup(
    install_requires=[
        *required,
        *(f"{name} @ {(TREE / 'install' / name).as_uri()}" for name in STAND_INS),
    ]
)
