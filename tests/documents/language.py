"""Figures of how plain the hand-written pages and the program's texts are, and their limits.

``python -m tests.documents.language`` prints the limits of ``language.toml`` after it has lowered
them to the figures. It raises none: a text that exceeds its limits has to become shorter or
plainer. A limit of a page stays at ``standard`` or above, and a new page gets its words and the
standard. A kind of texts in the program has no limit of words, and its awkward phrases may become
none.
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
    """A page without code, comments, pictures and the targets of links."""
    text = re.sub(r"(?ms)^ *```.*?^ *```$|<!--.*?-->", "", text)
    return re.sub(r"!?\[([^]]*)\]\([^)]*\)", r"\1", re.sub(r"`[^`]*`", "Code", text))


def sentences(text: str) -> list[str]:
    """Sentences of paragraphs and lists, without headings and tables."""
    lines = (re.sub(r"^ *(?:- |\d+\. )", "\n", line) for line in prose(text).splitlines())
    plain = "\n".join("" if line.lstrip().startswith(("|", "#")) else line for line in lines)
    parts = re.split(r"\n\s*\n|(?<=[.?!])[\s*]+(?=\W*[A-Z])", plain)
    return [part for part in parts if re.search(r"\w", part)]


def figures(text: str) -> dict[str, int]:
    """Words as ``wc -w`` counts them, and those of what ``standard`` has."""
    lengths = [len(re.findall(r"\w\S*", each)) for each in sentences(text)] or [0]
    long = sum(length > 30 for length in lengths)
    found = {"words": len(text.split()), "awkward": len(AWKWARD.findall(prose(text)))}
    mean = ceil(sum(lengths) / len(lengths))
    return found | {"mean": mean, "long": ceil(100 * long / len(lengths))}


def standard(words: int) -> dict[str, int]:
    """Limits of awkward phrases, words of a mean sentence, percent of more than 30 words."""
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
