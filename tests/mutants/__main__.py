"""Check that every defence has a test that fails without it."""

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from tests.mutants.mutant import THREATS, BadMutant, Mutant, faults, read, threats, unmatched
from tests.mutants.trial import Outcome, Result, applied, copy_tree, run_tests

ROOT = Path(__file__).resolve().parents[2]
VERDICTS = {
    Outcome.RED: "killed",
    Outcome.GREEN: "SURVIVED",
    Outcome.SKIPPED: "UNTRIED: every test is skipped here",
    Outcome.BROKEN: "UNTRIED: no test ran to its end",
    Outcome.TIMEOUT: "UNTRIED: out of time",
}


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Try the mutants of a tree; return 0 if tests kill all of them, else 1."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", action="append", metavar="SLUG", help="this threat; repeatable")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="mutants at a time")
    parser.add_argument("--seconds", type=float, default=300.0, help="most a mutant's tests take")
    options = parser.parse_args(arguments)
    try:
        mutants = read(root / "tests/mutants")
        problems = [f"{m.source}: {fault}" for m in mutants for fault in faults(m, root)]
        if not options.only:
            problems += unmatched(threats(root / THREATS), mutants)
    except BadMutant as error:
        mutants, problems = [], [str(error)]
    chosen = [m for m in mutants if not options.only or m.threat in options.only]
    if not chosen:
        problems.append("there is no mutant to try")
    if problems:
        print(*problems, sep="\n", file=sys.stderr)
        return 1
    return _try(chosen, root, options.jobs, options.seconds)


def _try(mutants: Sequence[Mutant], root: Path, jobs: int, seconds: float) -> int:
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        Path(scratch).chmod(0o755)  # Some tests read the tree as another user.
        trees: SimpleQueue[Path] = SimpleQueue()
        for number in range(jobs):
            tree = Path(scratch, str(number))
            copy_tree(root, tree)
            trees.put(tree)
        tests = sorted({test for mutant in mutants for test in mutant.tests})
        print(f"{len(tests)} tests with every defence in place", flush=True)
        parallel = ("--numprocesses", str(jobs), "--dist", "loadfile") if jobs > 1 else ()
        whole = run_tests(Path(scratch, "0"), tests, seconds * len(mutants), *parallel)
        if whole.outcome is not Outcome.GREEN:
            print(f"{whole.output}\nThe tests must pass before a defence is taken out.")
            return 1

        def attempt(mutant: Mutant) -> Result:
            tree = trees.get()
            try:
                with applied(mutant, tree):
                    result = run_tests(tree, mutant.tests, seconds, "--exitfirst")
            finally:
                trees.put(tree)
            print(_line(mutant, result), flush=True)
            return result

        with ThreadPoolExecutor(jobs) as pool:
            results = list(pool.map(attempt, mutants))
    return _report(mutants, results)


def _line(mutant: Mutant, result: Result) -> str:
    verdict = VERDICTS[result.outcome]
    return f"{result.seconds:6.1f} s  {mutant.threat:<24} {mutant.source:<24} {verdict}"


def _report(mutants: Sequence[Mutant], results: Sequence[Result]) -> int:
    tried = zip(mutants, results, strict=True)
    alive = [each for each in tried if each[1].outcome is not Outcome.RED]
    print(f"\n{len(mutants) - len(alive)} of {len(mutants)} mutants killed")
    for mutant, result in alive:
        print(f"\n{_line(mutant, result)}\n  {mutant.file}: {mutant.defence}")
        print("  no test of these fails without it:", *mutant.tests, sep="\n    ")
        if result.outcome is not Outcome.GREEN:
            print(result.output)
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
