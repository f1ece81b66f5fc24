"""The engine that samples with the policy itself."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from node.config.base import Section, key
from node.engines.kind import EngineKind

if TYPE_CHECKING:
    from node.engines.backend import Backend, BackendSettings
    from node.engines.engine import RolloutEngine
    from node.policy.policy import Policy


class Transformers(EngineKind):
    """Samples with the policy's own model, or with a copy of it in a process beside the learner."""

    as_checkpoint = False

    class Options(Section):
        """How it writes."""

        int8: bool = key(
            False,
            "Write with a copy of the weights in 8 bits (QeRL, arXiv 2510.11696), which is quicker "
            "on a CPU with models of 100 million parameters and more. What is learned from is "
            "corrected for it.",
        )

    def check(self) -> None:
        """See :func:`node.engines.transformers.eight_bits.check_processor`."""
        if self.options and self.options.int8:
            from node.engines.transformers.eight_bits import check_processor

            check_processor()

    def check_policy(self, policy: Policy) -> None:
        """See :func:`node.engines.transformers.agreement.check_agreement`, and
        :func:`node.engines.transformers.eight_bits.check_rounding`."""
        from node.engines.transformers.agreement import check_agreement
        from node.engines.transformers.eight_bits import check_rounding

        check_agreement(policy)
        if self.options.int8:
            check_rounding(policy)

    def embedded(self, policy: Policy, seed: int) -> RolloutEngine:
        """On the policy's own weights, or a copy of them in 8 bits.

        Raises:
            ConfigError: see :func:`node.engines.transformers.eight_bits.check_rounding`.
        """
        from node.engines.transformers.engine import TransformersEngine

        if self.options.int8:
            from node.engines.transformers.eight_bits import check_rounding

            check_rounding(policy)
        return TransformersEngine(policy, seed=seed, eight_bits=self.options.int8)

    def backend(self, settings: BackendSettings) -> Backend:
        """One batch that rows join and leave."""
        import torch

        from node.engines.transformers.backend import ContinuousDecoding

        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
        return ContinuousDecoding.open(settings)
