"""Hostile texts that try to run, cause a request, deceive the reader or overflow."""

from itertools import product

RUN = "window.executed=(window.executed||0)+1"
FETCH = "http://203.0.113.7/x"

_TAGS = (
    f"<script>{RUN}</script>",
    f"<img src=x onerror={RUN}>",
    f"<svg onload={RUN}>",
    f"<svg><script>{RUN}</script></svg>",
    f"<iframe srcdoc='<script>parent.{RUN}</script>'></iframe>",
    f"<iframe src=javascript:{RUN}></iframe>",
    f"<a href=javascript:{RUN}>x</a>",
    f"<body onload={RUN}>",
    f"<details open ontoggle={RUN}>",
    f"<input autofocus onfocus={RUN}>",
    f"<video><source onerror={RUN}>",
    f"<math><mtext><mglyph><style><img src=x onerror={RUN}>",
    f"<style>*{{background:url({FETCH})}}</style>",
    f"<link rel=stylesheet href={FETCH}>",
    f"<meta http-equiv=refresh content='0;url={FETCH}'>",
    f"<object data={FETCH}></object>",
    f"<base href={FETCH}>",
    f"<form action={FETCH}><button>",
    "<div style='position:fixed;inset:0;background:red'>",
    f"${{{RUN}}}",
    f"{{{{{RUN}}}}}",
    f"javascript:{RUN}",
)
_BEFORE = ("", "'", '"', "`", "-->", "]]>", "</textarea>", "</script>", "</title>")

_ODD = (
    "\u202egnidaer siht ekat ton od\u202c",
    "\u2066\u2067\u2068 abc \u202d def",
    "user\u200bname\u200d\ufeff",
    "\u0000\u0001\u001b[31mred\u001b[0m\u0007",
    "z" + "\u0334\u0335\u0353\u0353\u0353" * 200,
    "م" * 300,
    "א abc ב 123 ג",
    "w" * 5000,
    "W" * 500 + "\u00ad" * 500,
    "\n" * 300 + "x",
    "\t" * 200 + "x",
    "\r\n\r\nHTTP/1.1 200 OK\r\nset-cookie: a=b",
    "\u3164" * 200,
    "\ud800 alone",
    "👩‍👩‍👧‍👦" * 100,
    "﷽" * 200,
    "\U000e0041\U000e0042",
    "\u2028\u2029",
    "constructor",
    "__proto__",
    "hasOwnProperty",
    "[object Object]",
    "null",
    "",
    "%00%0a<>&amp;&#60;",
    '{"constructor":{"name":"x"},"type":"script","props":{"dangerouslySetInnerHTML":1}}',
    "../../../etc/passwd",
    "0x1p-3",
    "NaN",
    " ",
)

TEXTS = (*(before + tag for before, tag in product(_BEFORE, _TAGS)), *_ODD)
"""More than 200 different texts."""
