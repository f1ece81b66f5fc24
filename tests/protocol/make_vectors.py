"""Write the test vectors: ``python -m tests.protocol.make_vectors`` in the root.

Every file is ``{"context": …, "vectors": [{"name", "input", …, "expected" | "error"}]}``, byte
strings in lower-case hex. ``docs/minimal_member.md`` explains how to read each file.
"""

import json
from pathlib import Path

from tests.protocol.cases_dht import counting, dht
from tests.protocol.cases_frame import frame
from tests.protocol.cases_keys import identity, keys
from tests.protocol.cases_manifest import manifest
from tests.protocol.cases_profile import profile
from tests.protocol.cases_record import messages, records
from tests.protocol.cases_values import answers, codec, transcripts

FOLDER = Path(__file__).parent / "vectors"
FILES = {
    "codec": codec,
    "identity": identity,
    "keys": keys,
    "manifest": manifest,
    "frame": frame,
    "announcement": records,
    "messages": messages,
    "dht": dht,
    "counting": counting,
    "profile": profile,
    "answers": answers,
    "transcripts": transcripts,
}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, make in FILES.items():
        text = json.dumps(make(), indent=1, ensure_ascii=False)
        (FOLDER / f"{name}.json").write_text(text + "\n")
