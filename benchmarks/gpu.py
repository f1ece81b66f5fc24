"""What this machine's GPU does with a node's parts: right or wrong, how fast, in how much memory.

Needs torch and transformers, no network, and eight minutes at most; what is missing is said, and
the sections that need it are skipped. Models are random. Each section runs in a process of its own
with a time budget of its own. Prints a markdown table and writes
``benchmarks/results/gpu-<device>.json``. Run it as ``make bench-gpu``, or as
``python benchmarks/gpu.py [--only SECTION ...]``; without a GPU ``--device cpu --smoke`` runs what
can run there, with models of a million parameters.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import sys
import time
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

from on_gpu.running import Result, run_section, starter
from on_gpu.section import Section, Settings
from on_gpu.sections import SECTIONS
from on_gpu.table import markdown

HERE = Path(__file__).resolve().parent
WHOLE_SECONDS = 470.0
NO_GPU = 2
"""Exit status where there is no GPU and none was done without."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1 or cpu")
    parser.add_argument("--smoke", action="store_true", help="the smallest of everything")
    parser.add_argument("--model", default="", metavar="DIR", help="a real one, for its sections")
    parser.add_argument("--only", nargs="+", choices=sorted(SECTIONS), metavar="SECTION")
    parser.add_argument("--out", type=Path, default=HERE / "results", help="folder")
    parser.add_argument("--list", action="store_true", help="print the names of all sections")
    return parser.parse_args()


def missing(settings: Settings) -> str:
    """Why nothing can be measured; empty where it can."""
    try:
        import torch
    except ImportError:
        return f"torch is not installed for {sys.executable}: set PYTHON to a Python that has it"
    if find_spec("transformers") is None:
        return f"transformers is not installed for {sys.executable}: install it there"
    if settings.on_gpu and not torch.cuda.is_available():
        return (
            f"torch {torch.__version__} sees no GPU with CUDA here: run this where there is one, "
            "or with --device cpu --smoke"
        )
    return ""


def name_of(settings: Settings) -> str:
    """Of the device, for people."""
    import torch

    return torch.cuda.get_device_name(settings.device) if settings.on_gpu else platform.machine()


def measure(settings: Settings, sections: list[Section]) -> list[Result]:
    """Run the sections one after the other, each as long as it may and time is left."""
    context, until, results = starter(), time.monotonic() + WHOLE_SECONDS, []
    for section in sections:
        left = min(section.budget * settings.patience, until - time.monotonic())
        if left <= 0:
            result = Result(section.name, state="skipped", why="no time is left")
        else:
            result = run_section(context, section, settings, left)
        results.append(result)
        print(markdown(section.title, result), flush=True)
    return results


def main() -> int:
    sys.path.insert(1, str(HERE.parent))  # a node's own packages need not be installed
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    options = arguments()
    if options.list:
        print("\n".join(SECTIONS))
        return 0
    # Not all of torch's calls take a device without its number.
    named = "cuda:0" if options.device == "cuda" else options.device
    settings = Settings(named, options.smoke, options.model)
    if why := missing(settings):
        print(why, file=sys.stderr)
        return NO_GPU
    sections = [SECTIONS[name] for name in options.only or SECTIONS]
    if not settings.on_gpu and not options.only:
        sections = [each for each in sections if not each.gpus]
    from on_gpu.whole import packages

    device, found = name_of(settings), packages()
    versions = ", ".join(f"{name} {version or '(missing)'}" for name, version in found.items())
    print(f"# {device}\n\n{versions}\n", flush=True)
    results = measure(settings, sections)
    slug = re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")
    path = options.out / f"gpu-{slug}{'-smoke' if options.smoke else ''}.json"
    told = {"device": device, "smoke": options.smoke, "packages": found, "python": sys.version}
    options.out.mkdir(parents=True, exist_ok=True)
    whole = {**told, "sections": [asdict(result) for result in results]}
    path.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {path}")
    fine = ("done", "skipped")
    return 0 if all(result.state in fine or result.partial for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
