"""The process that commands of these tests are forked from."""

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
"""An import that fails the first time, in whichever process that is."""

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


def test_a_forked_command_imports_what_its_parent_process_could_not(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    (tmp_path / "sitecustomize.py").write_text(ONCE.format(mark=str(mark)))
    run = python(COMMAND, str(tmp_path), cwd=ROOT)
    assert mark.exists(), "it failed in no process"
    assert run.stdout.startswith("0 "), run.stdout + run.stderr
