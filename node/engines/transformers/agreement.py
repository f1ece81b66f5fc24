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
        gaps = agreement(policy, graphs=graphs)
    except ConfigError:
        raise
    except Exception as error:  # a library may raise anything for an unfamiliar model
        if micro_batching.of_memory(error):
            raise
        words = " ".join(str(error).split()) or "no reason given"
        raise _refused(policy, f"fails: {type(error).__name__}: {words[:160]}") from error
    if not trains:
        return
    exact, dtype = policy.model.dtype == torch.float32, str(policy.model.dtype)
    gap = float(gaps.max() if exact else gaps.mean())
    limits = WIDE_GAPS if policy.version else MOST_AT_THE_MEAN
    most = MOST_OF_A_TOKEN if exact else limits[dtype.removeprefix("torch.")]
    if not math.isfinite(gap):
        for name, weight in policy.model.named_parameters():
            if not weight.isfinite().all():
                why = f"its weight {name} has infinite or NaN values"
                raise refused(policy.name, why, FETCH_AGAIN)
    if not exact and most < gap <= UNCLEAR * most and _agrees_in_float32(policy, graphs):
        return
    if not gap <= most:
        at = "per token" if exact else "at the mean"
        why = f"differs by {gap:.2g} nats {at} from the learner, more than {most:g}"
        raise _refused(policy, why, REMEDY if exact else ROUNDING)


def _agrees_in_float32(policy: Policy, graphs: bool) -> bool:
    """Return whether rounding alone explains a difference; False if memory runs out."""
    whole, gaps = copy.copy(policy.merged()), list[Tensor]()

    def measure() -> None:
        whole.model = copy.deepcopy(whole.model).float()  # type: ignore[no-untyped-call]
        gaps.append(agreement(whole, graphs=graphs))

    return not micro_batching.ran_out(measure) and float(gaps[0].max()) <= MOST_OF_A_TOKEN


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
    random = torch.Generator(draws_on(policy.device)).manual_seed(0)
    decoding = decoders.open(policy, Sampling(), random)
    reports = decoding.join(prompts[:1], [1], CAPS[:1])
    reports += [each for _ in range(2) for each in decoding.step()]
    while not decoding.open:
        reports += decoding.step()
    reports += decoding.join(prompts[1:], [2, 1], CAPS[1:])
    while decoding.left:
        reports += decoding.step()
    rows = defaultdict[int, list[RequestOutput]](list)
    for each in reports:
        rows[each.number].append(each)
    written = []
    for number in range(len(CAPS)):
        ids = tuple(token for each in rows[number] for token in each.ids)
        logprobs = tuple(value for each in rows[number] for value in each.logprobs)
        written.append(TrainingCompletion(ids, (True,) * len(ids), logprobs))
    return written


def _gaps(policy: Policy, prompts: Prompts, written: Sequence[TrainingCompletion]) -> Tensor:
    first, *twice, last = written
    rows = [
        Row(tuple(prompt), tuple(each), (0.0,) * len(each), True)
        for prompt, each in zip(prompts, ([first], twice, [last]), strict=True)
    ]
    ways = [[part for row in rows for part in row.parts()]]
    if micro_batching.reads_shared_rows(policy.model):
        ways.append(rows)
    gaps = []
    for way in ways:
        for batch in micro_batches(way, 1 << 16, policy.pad_id, policy.device):
            read = token_logprobs(distributions(policy.model, batch, 1.0), batch)
            gaps.append((read - batch.behaviour).abs()[batch.mask])
    return torch.cat(gaps)


def _bounds_scans_alone(model: nn.Module) -> bool:
    """Return whether only a prefill bounds time steps, as in Mamba 2's scan."""
    limits = (getattr(module, "time_step_limit", None) for module in model.modules())
    return any(limit is not None and tuple(limit) != (0.0, math.inf) for limit in limits)


def _refused(policy: Policy, why: str, remedy: str = REMEDY) -> PolicyError:
    family = policy.model.config.model_type
    return refused(policy.name, f"the transformers engine on {family!r} {why}", remedy)
