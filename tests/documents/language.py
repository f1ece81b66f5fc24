"""Measure length and style of pages and program texts, and set their limits.

``python -m tests.documents.language`` lowers the limits in ``language.toml`` to the current
figures and prints them. It raises no limit: a text that exceeds one must become shorter or
plainer. The limits of a page never fall below ``standard``. A new page gets its current word
count and the standard. Program texts have no word limit, and their limit of awkward phrases may
fall to zero.
"""

import re
import tomllib
from math import ceil

from tests.documents.page import PAGES, ROOT, name
from tests.documents.spoken import spoken

LIMITS = ROOT / "tests" / "documents" / "language.toml"
GENERATED = {f"docs/{each}.md" for each in ("api", "cli", "configuration")}
RECORDS = {"CHANGELOG.md", "benchmarks/RESULTS.md"}
WRITTEN = {name(page): page for page in PAGES if name(page) not in GENERATED | RECORDS}

AWKWARD = re.compile(
    r"(?i:\b(?:whoever|nobody|somebody|told|anew|besides|likewise|but for|left out|went on)\b"
    r"|\bgo(?:es|ing|ne)? on\b|(?<!there )\b(?:is|are|was|were) no\b(?! longer)"
    r"|\b(?:bytes|[KMGT]i?B|completions|groups|requests|rounds|times|tokens|words) a second\b)"
    r"|(?m:^|[.?!] |[|#-] |\d\. )(?:Of|What|Where|Who)\b"
)


def prose(text: str) -> str:
    """Return a page without code, comments, pictures and link targets."""
    text = re.sub(r"(?ms)^ *```.*?^ *```$|<!--.*?-->", "", text)
    return re.sub(r"!?\[([^]]*)\]\([^)]*\)", r"\1", re.sub(r"`[^`]*`", "Code", text))


def sentences(text: str) -> list[str]:
    """Return the sentences of paragraphs and lists, without headings and tables."""
    lines = (re.sub(r"^ *(?:- |\d+\. )", "\n", line) for line in prose(text).splitlines())
    plain = "\n".join("" if line.lstrip().startswith(("|", "#")) else line for line in lines)
    parts = re.split(r"\n\s*\n|(?<=[.?!])[\s*]+(?=\W*[A-Z])", plain)
    return [part for part in parts if re.search(r"\w", part)]


def figures(text: str) -> dict[str, int]:
    """Count words as ``wc -w`` does, and measure the figures that ``standard`` limits."""
    lengths = [len(re.findall(r"\w\S*", each)) for each in sentences(text)] or [0]
    long = sum(length > 30 for length in lengths)
    found = {"words": len(text.split()), "awkward": len(AWKWARD.findall(prose(text)))}
    mean = ceil(sum(lengths) / len(lengths))
    return found | {"mean": mean, "long": ceil(100 * long / len(lengths))}


def standard(words: int) -> dict[str, int]:
    """Return limits: awkward phrases, mean sentence length, percent over 30 words."""
    return {"awkward": words * 3 // 1000, "mean": 17, "long": 5}


def lowered(before: dict[str, dict[str, int]]) -> str:
    rows = []
    texts = {page: path.read_text() for page, path in sorted(WRITTEN.items())} | spoken()
    for page, text in texts.items():
        found = figures(text)
        usual = least = standard(found["words"])
        found["words"] = 50 * ceil(found["words"] / 50)
        if page not in WRITTEN:
            del found["words"]
            least = least | {"awkward": 0}
        most = before.get(page, {**found, **usual})
        kept = {key: max(least.get(key, 0), min(most[key], value)) for key, value in found.items()}
        rows.append(f'"{page}" = {{ {", ".join(f"{k} = {v}" for k, v in kept.items())} }}\n')
    return "".join(rows)


if __name__ == "__main__":
    LIMITS.write_text(lowered(tomllib.loads(LIMITS.read_text())))
    print(LIMITS.read_text(), end="")
