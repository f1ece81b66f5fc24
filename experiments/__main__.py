"""``python -m experiments``, from a clone: what sharing experience is worth."""

from node.cli.main import run

if __name__ == "__main__":
    run("experiments.commands")
