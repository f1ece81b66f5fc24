"""Collect the texts that users read in the program and on its web pages."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache

from tests.documents.page import ROOT
from tests.parsing import parse

KINDS = ("help", "configuration", "messages", "docstrings", "screens")
CALLS = {"key": "configuration", "kind_key": "configuration", "options_key": "configuration"}
CALLS |= {"Argument": "help", "Option": "help", "Typer": "help"}
WORD = re.compile(r"\b[A-Za-z][a-z]+\b(?= |[.,:;?]|$)")
SCRIPT = re.compile(r"[={}]|;(?! [a-z])|\w\(|&&|\?\?|\|\|")
CODE = re.compile(r"[{;]\n|</|\bimport |^\s*[A-Z]{4,} [\w*]|^\w+://|\(\?[:<]|\n(?:[a-z]+ ){6}")
"""Matches code, markup, SQL, addresses, patterns and word lists."""
TASKS = re.compile(r"node/tasks/\w*famil\w*\.py")
"""Matches files whose literals are questions to a model."""


@cache
def spoken() -> dict[str, str]:
    """Return texts by kind, one per paragraph; ``Code`` replaces each inserted value."""
    texts = defaultdict[str, list[str]](list)
    for package in ("node", "swarm", "protocol", "experiments"):
        for path in sorted((ROOT / package).rglob("*.py")):
            asks = TASKS.fullmatch(path.relative_to(ROOT).as_posix())
            for kind, text in found(parse(path.read_text(encoding="utf-8"))):
                if not (asks and kind == "messages"):
                    texts[kind].append(text)
    for path in sorted((ROOT / "node" / "dashboard").glob("*static/*.[hj]*")):
        texts["screens"] += shown(path.read_text(encoding="utf-8"))
    return {kind: "\n\n".join(texts[kind]) for kind in KINDS}


def found(item: ast.AST, kind: str = "messages") -> Iterator[tuple[str, str]]:
    """Yield kind and text of each docstring and of literals with three or more words."""
    match item:
        case ast.FunctionDef(name=name) if name.endswith("_command"):
            kind = "help"
        case ast.ClassDef(bases=[ast.Name(id="Section")]):
            kind = "configuration"
        case ast.Expr(value=ast.Constant(value=str(text))):
            yield "docstrings" if kind == "messages" else kind, text
            return
        case ast.Constant(value=str()) | ast.JoinedStr():
            text = literal(item)
            if len(WORD.findall(text)) > 2 and not CODE.search(text):
                yield kind, text
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            kind = CALLS.get(name, "messages")
    for child in ast.iter_child_nodes(item):
        if not isinstance(item, ast.JoinedStr) or isinstance(child, ast.FormattedValue):
            yield from found(child, kind)


def literal(item: ast.Constant | ast.JoinedStr) -> str:
    if isinstance(item, ast.Constant):
        return str(item.value)
    return "".join(str(p.value) if isinstance(p, ast.Constant) else "Code" for p in item.values)


def shown(script: str) -> list[str]:
    """Return texts of three or more words in a script; ``Code`` replaces values."""
    text = re.sub(r"(?m)^ *//.*$|</?(?:a|b|code|small|span|time)\b[^<>]*>", "", script)
    text = re.sub(r"\$\{[^{}`'<>]*\}", "Code", text)
    parts = re.findall(r"(?<=[>'\"`])[^<>'\"`]+(?=[<'\"`$])", text)
    return [part for part in parts if len(WORD.findall(part)) > 2 and not SCRIPT.search(part)]
