"""Check that the transformers engine and the learner agree on log-probs.

Some models' caches cannot be padded, repeated for a group or joined by rows while decoding. That
raises no error: the node would then train on something other than what it sampled.
"""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from node.config.config import WIDE_GAPS
from node.engines.engine import Prompts, RequestOutput, Sampling
from node.engines.transformers.decoding import Decoders
from node.errors import ConfigError
from node.learner import micro_batching
from node.learner.batches import Row, TrainingCompletion, micro_batches
from node.learner.logprobs import distributions, token_logprobs
from node.policy.device import draws_on
from node.policy.model_files import FETCH_AGAIN, PolicyError, refused
from node.policy.policy import Policy

TEXT = "Six times seven is 42, since 6 * 7 = 42. Then 42 / 7 is 6 again."
FIRST, SPACES = 5, ((1, 4), (2, 9))  # tokens of the first prompt, ranges of the joining ones
CAPS = (5, 1, 4, 2)  # tokens to sample: first prompt, twice the second, the third
MOST_OF_A_TOKEN = 1e-3
"""Maximum nats of a token in float32."""

MOST_AT_THE_MEAN = {"bfloat16": 0.05, "float16": 0.03}
"""Maximum nats per token in 16 bits: SmolLM2-135M measured 0.019 and 0.010 (on a CPU).

For a policy that is not trained yet, whose texts are fixed. A resumed one writes others, so the
limit for rounds, ``WIDE_GAPS``, applies. Its model passed when the run began.
"""
UNCLEAR = 3.0  # multiple of that up to which a float32 copy of the model decides

REMEDY = (
    'Set engine.backend = "vllm", or choose another model: docs/models.md lists the supported ones.'
)
ROUNDING = f'If 16 bits are the cause, set policy.dtype = "float32". {REMEDY}'


def check_agreement(policy: Policy, *, graphs: bool = True, trains: bool = True) -> None:
    """Refuse a model whose log-probs differ between engine and learner, if it ``trains``.

    It costs two short prefills, five decoding steps and one or two forward passes of the learner;
    in 16 bits, and close to the limit, the same again with a float32 copy of the model.
    Other random number generators are unaffected. Raises PolicyError: the difference is more than
    rounding explains, or the model fails. ConfigError: a GPU cannot record ``graphs``.
    """
    if trains and _bounds_scans_alone(policy.model):
        raise _refused(policy, "bounds the time step of a scan, and not that of a single token")
    try:
        mismatches = agreement(policy, graphs=graphs)
    except ConfigError:
        raise
    except Exception as error:  # a library may raise anything for an unfamiliar model
        if micro_batching.of_memory(error):
            raise
        detail = " ".join(str(error).split()) or "no reason given"
        raise _refused(policy, f"fails: {type(error).__name__}: {detail[:160]}") from error
    if not trains:
        return
    is_fp32, dtype = policy.model.dtype == torch.float32, str(policy.model.dtype)
    mismatch = float(mismatches.max() if is_fp32 else mismatches.mean())
    limits = WIDE_GAPS if policy.version else MOST_AT_THE_MEAN
    limit = MOST_OF_A_TOKEN if is_fp32 else limits[dtype.removeprefix("torch.")]
    if not math.isfinite(mismatch):
        for name, weight in policy.model.named_parameters():
            if not weight.isfinite().all():
                reason = f"its weight {name} has infinite or NaN values"
                raise refused(policy.name, reason, FETCH_AGAIN)
    if not is_fp32 and limit < mismatch <= UNCLEAR * limit and _agrees_in_float32(policy, graphs):
        return
    if not mismatch <= limit:
        unit = "per token" if is_fp32 else "at the mean"
        reason = f"differs by {mismatch:.2g} nats {unit} from the learner, more than {limit:g}"
        raise _refused(policy, reason, REMEDY if is_fp32 else ROUNDING)


def _agrees_in_float32(policy: Policy, graphs: bool) -> bool:
    """Return whether rounding alone explains a difference; False if memory runs out."""
    merged, mismatches = copy.copy(policy.merged()), list[Tensor]()

    def measure() -> None:
        merged.model = copy.deepcopy(merged.model).float()  # type: ignore[no-untyped-call]
        mismatches.append(agreement(merged, graphs=graphs))

    return not micro_batching.ran_out(measure) and float(mismatches[0].max()) <= MOST_OF_A_TOKEN


@torch.inference_mode()
def agreement(policy: Policy, *, graphs: bool = True) -> Tensor:
    """Return ``|engine - learner|`` of log-probs in nats, float32 ``[tokens]``.

    Each token counts once per way in which the learner reads it: with its completion alone, and
    with all that share its prompt.
    """
    ids = policy.encode_completion(TEXT, stopped=False)
    while len(ids) < SPACES[-1][1]:
        ids += ids or [policy.pad_id]
    prompts = [ids[:FIRST], *(ids[begin:end] for begin, end in SPACES)]
    trial = copy.copy(policy.merged())
    trial.stop_ids = ()
    with torch.random.fork_rng(devices=[]):
        return _gaps(policy, prompts, _written(trial, prompts, Decoders(graphs=graphs)))


def _written(policy: Policy, prompts: Prompts, decoders: Decoders) -> list[TrainingCompletion]:
    """Sample one completion of the first prompt, two of the second, one of the third."""
    generator = torch.Generator(draws_on(policy.device)).manual_seed(0)
    decoding = decoders.open(policy, Sampling(), generator)
    outputs = decoding.join(prompts[:1], [1], CAPS[:1])
    outputs += [output for _ in range(2) for output in decoding.step()]
    while not decoding.open:
        outputs += decoding.step()
    outputs += decoding.join(prompts[1:], [2, 1], CAPS[1:])
    while decoding.left:
        outputs += decoding.step()
    rows = defaultdict[int, list[RequestOutput]](list)
    for output in outputs:
        rows[output.number].append(output)
    completions = []
    for number in range(len(CAPS)):
        ids = tuple(token for output in rows[number] for token in output.ids)
        logprobs = tuple(value for output in rows[number] for value in output.logprobs)
        completions.append(TrainingCompletion(ids, (True,) * len(ids), logprobs))
    return completions


def _gaps(policy: Policy, prompts: Prompts, completions: Sequence[TrainingCompletion]) -> Tensor:
    first, *second, last = completions
    rows = [
        Row(tuple(prompt), tuple(each), (0.0,) * len(each), True)
        for prompt, each in zip(prompts, ([first], second, [last]), strict=True)
    ]
    layouts = [[part for row in rows for part in row.parts()]]
    if micro_batching.reads_shared_rows(policy.model):
        layouts.append(rows)
    mismatches = []
    for layout in layouts:
        for batch in micro_batches(layout, 1 << 16, policy.pad_id, policy.device):
            logprobs = token_logprobs(distributions(policy.model, batch, 1.0), batch)
            mismatches.append((logprobs - batch.behaviour).abs()[batch.mask])
    return torch.cat(mismatches)


def _bounds_scans_alone(model: nn.Module) -> bool:
    """Return whether only a prefill bounds time steps, as in Mamba 2's scan."""
    limits = (getattr(module, "time_step_limit", None) for module in model.modules())
    return any(limit is not None and tuple(limit) != (0.0, math.inf) for limit in limits)


def _refused(policy: Policy, reason: str, remedy: str = REMEDY) -> PolicyError:
    family = policy.model.config.model_type
    return refused(policy.name, f"the transformers engine on {family!r} {reason}", remedy)
