"""The fork server from which these tests start commands."""

from pathlib import Path

from tests.node.programs import ROOT, python

ONCE = """
import sys
from pathlib import Path

class Once:
    def find_spec(self, name, path=None, target=None):
        if name == "node.doctor.checks" and not (mark := Path({mark!r})).exists():
            mark.touch()
            raise ImportError("a file could not be read")

sys.meta_path.insert(0, Once())
"""
"""Makes an import fail once, in the first process that tries it."""

COMMAND = """
import sys
from pathlib import Path
from tests.end_to_end import forked

forked.SURROUNDINGS["PYTHONPATH"] += ":" + sys.argv[1]
folder = Path(sys.argv[1], "command")
folder.mkdir()
ended = forked.run(("--version",), folder)
print(ended.status, ended.out, ended.err)
"""


def test_forked_command_retries_an_import_that_failed(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    (tmp_path / "sitecustomize.py").write_text(ONCE.format(mark=str(mark)))
    run = python(COMMAND, str(tmp_path), cwd=ROOT)
    assert mark.exists(), "the import failed in a process"
    assert run.stdout.startswith("0 "), run.stdout + run.stderr
