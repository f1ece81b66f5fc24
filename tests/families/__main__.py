"""Command that measures all families and writes docs/models.md; ten minutes."""

import logging
import re
import sys
import tempfile
from pathlib import Path

import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from node.engines.transformers.agreement import check_agreement
from node.policy.model_files import PolicyError
from tests.families.small import TooLargeError, small_policy
from tests.families.table import PAGE, Family, measured, page, record

UNTRIED = {
    "moshi": "it generates audio",
    "musicgen": "it generates audio",
    "musicgen_melody": "it generates audio",
    "gemma4_assistant": "it drafts tokens for another model",
    "gemma4_unified_assistant": "it drafts tokens for another model",
}


def tried(family: str) -> Family:
    """Build a family, check it as a node would, and measure it."""
    if why := UNTRIED.get(family):
        return Family(untried=why)
    try:
        policy = small_policy(family)
    except TooLargeError:
        return Family(untried="no small model was built")
    except Exception as error:  # noqa: BLE001 - any error of the library is reported
        return Family(untried=f"a small model cannot be built ({_first(error)})")
    refused = ""
    try:
        check_agreement(policy)
    except PolicyError as error:
        match = re.search(rf"on {family!r} (.*)\)\. Set engine", str(error))
        assert match is not None, error
        refused = match[1]
    with tempfile.TemporaryDirectory() as folder:
        try:
            return Family(measured(family, Path(folder)), refused)
        except Exception as error:  # noqa: BLE001 - a refused family may fail anywhere
            return Family(refused=refused or f"MISSED: {_first(error)}")


def _first(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:100]}"


def main() -> None:
    """Write the record and the page; exit with 1 if a wrong family is not refused."""
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    families = {name: tried(name) for name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES}
    record(transformers.__version__, families)
    PAGE.write_text(page(), encoding="utf-8")
    missed = [
        name
        for name, each in families.items()
        if "MISSED" in each.refused or not (each.works or each.refused or each.untried)
    ]
    sys.exit(f"off, and taken: {', '.join(missed)}" if missed else 0)


if __name__ == "__main__":
    main()
