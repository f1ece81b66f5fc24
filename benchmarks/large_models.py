"""Time and peak memory of a node's whole step with a randomly initialised model of real size.

Three sides, each in a process of its own that loads the model from a folder: a node (generate,
verify, update, hand over), TRL's GRPOTrainer on the same prompts and lengths, and the embedded
engine beside ``transformers.generate`` on as many rows. They take turns, and ratios are medians of
what was measured within a turn. Peak memory is a process's largest resident set, libraries
included. ``engine_of_bandwidth`` is the time in which this machine copies as many bytes as the
weights have, over that of a decoding step: 1 where nothing but reading the weights takes time.
Run it as ``python benchmarks/large_models.py [--size 0.1] [--dtype bfloat16] [--words 150000]``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from options import parser
from output import show

from node import threads

SHAPES = {
    "0.1": {"hidden_size": 768, "num_hidden_layers": 12, "intermediate_size": 2048},
    "0.4": {"hidden_size": 1024, "num_hidden_layers": 24, "intermediate_size": 4096},
}
HEAD = 64
COPIED = 256 << 20
WARM_UP = 1
SIDES = ("node", "trl", "engine")
NAMED = ("size", "words", "dtype", "optimizer", "prompts", "completions", "tokens", "threads")


def write_model(folder: Path, size: str, words: int, dtype: str) -> None:
    """A random Qwen2 with a tokenizer of as many words."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen2Config

    tokenizer = tokenizer_of(words)
    shape = SHAPES[size]
    heads = shape["hidden_size"] // HEAD
    config = Qwen2Config(
        vocab_size=words,
        num_attention_heads=heads,
        num_key_value_heads=heads // 4,
        tie_word_embeddings=True,
        max_position_embeddings=4096,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        **shape,
    )
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_config(
        config, dtype=getattr(torch, dtype), trust_remote_code=False
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def tokenizer_of(words: int) -> Any:
    """One word a character, and as many more as the vocabulary has room for."""
    from policies import word_tokenizer

    names = ["<pad>", "<eos>", "<unk>", *map(chr, range(32, 127)), "\n"]
    names += [f"word{n}" for n in range(words - len(names))]
    return word_tokenizer(names)


def turns_of(options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """What the sides measured, by turn."""
    with ExitStack() as stack:
        sides = {side: stack.enter_context(_child(options, side, folder)) for side in options.sides}
        turns = []
        for _ in range(WARM_UP + options.turns):
            turn: dict[str, Any] = {}
            for process in sides.values():
                assert process.stdin and process.stdout
                process.stdin.write("go\n")
                process.stdin.flush()
                turn |= _told(process.stdout)
            turns.append(turn)
        return turns[WARM_UP:]


def _told(lines: Any) -> dict[str, Any]:
    """The next line that is a result; libraries print others."""
    for line in lines:
        if line.startswith("{"):
            return dict(json.loads(line))
    raise SystemExit("a side has ended before its turn: its words are above")


def _child(options: argparse.Namespace, side: str, folder: Path) -> subprocess.Popen[str]:
    arguments = [sys.executable, __file__, "--side", side, "--folder", str(folder)]
    for name in (*NAMED, "turns"):
        arguments += [f"--{name}", str(getattr(options, name))]
    return subprocess.Popen(arguments, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def _tell(**figures: float) -> None:
    print(json.dumps(figures), flush=True)


def resident(field: str) -> int:
    """Return a figure of this process's memory (Linux), bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(field))


def peak() -> float:
    """The largest resident set of this process so far, MiB."""
    return resident("VmHWM") / (1 << 20)


def _plain(options: argparse.Namespace) -> Any:
    """The model as the library loads it, with nothing of a node in it."""
    import torch
    from transformers import AutoModelForCausalLM

    dtype = getattr(torch, options.dtype)
    model = AutoModelForCausalLM.from_pretrained(
        options.folder / "model", dtype=dtype, trust_remote_code=False
    )
    model.generation_config.eos_token_id = None
    return model.eval()


def node_side(options: argparse.Namespace) -> None:
    """Rounds of a node without the network."""
    from node_step import NodeStep
    from policies import endless_policy

    policy = endless_policy(options.folder / "model", dtype=options.dtype)
    sides = options.prompts, options.completions, options.tokens
    keys = {"learner.optimizer": options.optimizer}
    with tempfile.TemporaryDirectory() as name, NodeStep(policy, Path(name), *sides, keys) as step:
        for _ in sys.stdin:
            _tell(node_s=step.whole(), node_mib=peak())


def trl_side(options: argparse.Namespace) -> None:
    """Steps of TRL's trainer."""
    from step import trl_trainer
    from transformers import AutoTokenizer, TrainerCallback

    class Turn(TrainerCallback):  # type: ignore[misc]
        begin = 0.0

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            if not sys.stdin.readline():
                raise SystemExit
            self.begin = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            _tell(trl_s=time.perf_counter() - self.begin, trl_mib=peak())

    trainer = trl_trainer(
        options,
        _plain(options),
        AutoTokenizer.from_pretrained(options.folder / "model", trust_remote_code=False),
        options.folder,
    )
    trainer.add_callback(Turn())
    trainer.train()


def engine_side(options: argparse.Namespace) -> None:
    """The engine alone, ``transformers.generate``, and copying as many bytes as they read."""
    from bare import bare_generate, seconds
    from node_step import PROMPTS
    from policies import endless_policy

    from node.engines.engine import Sampling
    from node.engines.transformers.engine import TransformersEngine

    policy = endless_policy(options.folder / "model", dtype=options.dtype)
    engine = TransformersEngine(policy, seed=0)
    plain = _plain(options)
    prompts = [policy.encode_prompt(text) for text in PROMPTS[: options.prompts]]
    n, tokens = options.completions, options.tokens
    size = sum(p.nbytes for p in policy.model.parameters())
    for _ in sys.stdin:
        ours = seconds(lambda: engine.generate(prompts, n, Sampling(max_new_tokens=tokens)))
        theirs = seconds(lambda: bare_generate(plain, prompts, n, tokens, policy.pad_id))
        read = size / _bandwidth()
        _tell(engine_s=ours, generate_s=theirs, engine_of_bandwidth=tokens * read / ours)


def _bandwidth() -> float:
    """Bytes that are copied in a second, the best of three."""
    import torch
    from bare import seconds

    source = torch.ones(COPIED, dtype=torch.uint8)
    target = torch.empty_like(source)
    return COPIED / min(seconds(lambda: target.copy_(source)) for _ in range(3))


def summary(turns: list[dict[str, Any]]) -> Iterator[tuple[str, float]]:
    """Medians over the turns; every ratio is taken within its turn."""
    for name in turns[0]:
        yield name, round(median(turn[name] for turn in turns), 2)
    for name, over, under in (
        ("node_over_trl_step", "node_s", "trl_s"),
        ("node_over_trl_peak", "node_mib", "trl_mib"),
        ("generate_over_engine", "generate_s", "engine_s"),
    ):
        if over in turns[0] and under in turns[0]:
            yield name, round(median(turn[over] / turn[under] for turn in turns), 2)


def main() -> None:
    arguments = parser(__doc__)
    arguments.set_defaults(prompts=2, completions=4, turns=3)
    arguments.add_argument("--size", choices=SHAPES, default="0.1", help="billion parameters")
    arguments.add_argument("--words", type=int, default=32_000, help="in the vocabulary")
    arguments.add_argument("--dtype", default="float32")
    arguments.add_argument("--optimizer", default="adamw", help="of the node; TRL's keeps float32")
    arguments.add_argument("--sides", nargs="+", choices=SIDES, default=SIDES)
    arguments.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    arguments.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = arguments.parse_args()
    threads.choose(options.threads)
    work: dict[str, Callable[[argparse.Namespace], None]]
    work = {"node": node_side, "trl": trl_side, "engine": engine_side}
    if options.side:
        work[options.side](options)
        return
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_model(folder / "model", options.size, options.words, options.dtype)
        turns = turns_of(options, folder)
    show({n: getattr(options, n) for n in NAMED} | dict(summary(turns)), as_json=options.json)


if __name__ == "__main__":
    main()
