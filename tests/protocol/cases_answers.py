"""Completions, how the answer is found in them, and the answer."""

from __future__ import annotations

BLANK = "\t\n\v\f\r\x1c\x1d\x1e\x1f \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)
"""White space as it is stripped: all of it, code point by code point."""
SOLID = "\ufeff\u200b\u2060\u180e\x00"
"""What other languages take for white space, or show as nothing."""

ANSWERS = {
    "all of a text": ("text", "4 5", "4 5"),
    "white space around a text": ("text", f"{BLANK}4{BLANK}5{BLANK}", f"4{BLANK}5"),
    "what is no white space": ("text", f" {SOLID}4{SOLID} ", f"{SOLID}4{SOLID}"),
    "nothing but white space": ("text", BLANK, ""),
    "a tag": ("answer_tag", "so <answer> 4\n</answer>.", "4"),
    "no tag": ("answer_tag", "4", ""),
    "a tag that is not closed": ("answer_tag", "<answer>4", ""),
    "a tag that is not opened": ("answer_tag", "4</answer>", ""),
    "two tags": ("answer_tag", "<answer>3</answer> no, <answer>4</answer>", "4"),
    "a second tag that is not closed": ("answer_tag", "<answer>3</answer><answer>4", "3"),
    "a tag inside a tag": ("answer_tag", "<answer>3<answer>4</answer>5</answer>", "4</answer>5"),
    "a tag in capitals": ("answer_tag", "<ANSWER>4</ANSWER>", ""),
    "an empty tag": ("answer_tag", "<answer>3</answer><answer></answer>", ""),
    "a box": ("boxed", r"so \boxed{ \frac{1}{2} }.", r"\frac{1}{2}"),
    "no box": ("boxed", "4", ""),
    "two boxes": ("boxed", r"\boxed{3} no, \boxed{4}", "4"),
    "a box that is not closed": ("boxed", r"\boxed{3} \boxed{4", ""),
    "a box inside a box": ("boxed", r"\boxed{3 \boxed{4} 5}", "4"),
    "a box with an escaped brace": ("boxed", r"\boxed{\}}", "\\"),
    "a box after a blank": ("boxed", r"\boxed {4}", ""),
}
"""How, the completion, the answer."""
