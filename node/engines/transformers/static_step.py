"""A decoding step of fixed shapes for Llama and Qwen models, recorded as a CUDA graph.

Launching kernels one by one takes several times as long as running them, for models of up to some
billion parameters. Here each row of a batch has a slot of a static KV cache, with its token ``n``
in column ``n``. The step samples, appends and looks back within a length that is rounded up, all
in place and without the host, so that one launch replays all of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Generator, Tensor
from torch.cuda import CUDAGraph, Stream
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import embedding, linear, pad, rms_norm, scaled_dot_product_attention, silu
from transformers import DynamicCache, PreTrainedModel

from node.engines.engine import Sampling
from node.engines.transformers.fused_decoder import added, head_norm, rotations
from node.engines.transformers.kv_cache import GrowingLayer, aligned, growing_cache
from node.errors import ConfigError
from node.learner.micro_batching import of_memory
from node.policy.fast_layers import normalized
from protocol.rollout import Finish

MANY_WORDS, BLOCK = 1 << 14, 256  # vocabulary size from which a block is sampled first; its size


def sample_tokens(logits: Tensor, sampling: Sampling, random: Generator) -> tuple[Tensor, Tensor]:
    """Sample one token per row from ``logits [B, V]``: int64 and float32 log-prob ``[B, 1]``.

    Tokens are drawn on the device of ``random``, which must have 64-bit numbers.
    """
    point = None
    if not sampling.greedy:
        shape, device = (len(logits), 1), random.device
        point = torch.rand(shape, generator=random, dtype=torch.float64, device=device)
    return tokens_at(logits, sampling, point)


def tokens_at(logits: Tensor, sampling: Sampling, point: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the tokens that ``point``, float64 ``[B, 1]`` in [0, 1), picks, and their log-probs.

    Inverts the cumulative distribution in float64: one random number per row, and no bias in large
    vocabularies. None is for greedy sampling.
    """
    logits = logits.float()
    if sampling.temperature != 1.0:
        logits = logits / sampling.temperature
    logprobs = logits.log_softmax(-1)
    if point is None or sampling.greedy:
        tokens = logprobs.argmax(-1, keepdim=True)
    else:
        probs = logprobs.exp().to(point.device)
        tokens = _inverted(probs, point).clamp_(max=logits.shape[-1] - 1).to(logits.device)
    return tokens, logprobs.gather(-1, tokens)


def _inverted(drawn: Tensor, point: Tensor) -> Tensor:
    """Return where unnormalized ``drawn [B, V]`` reaches its share ``point [B, 1]``."""
    if drawn.shape[-1] < MANY_WORDS:
        sums = drawn.cumsum(-1, dtype=torch.float64)
        return torch.searchsorted(sums, point * sums[:, -1:], right=True)
    blocks = pad(drawn, (0, -drawn.shape[-1] % BLOCK)).view(len(drawn), -1, BLOCK)
    sums = blocks.sum(-1, dtype=torch.float64).cumsum(-1)
    target = point * sums[:, -1:]
    block_ids = torch.searchsorted(sums, target, right=True).clamp_(max=sums.shape[-1] - 1)
    block = blocks.gather(1, block_ids[..., None].expand(-1, -1, BLOCK)).squeeze(1)
    prior = pad(sums, (1, 0)).gather(1, block_ids)
    offset = torch.searchsorted(block.cumsum(-1, dtype=torch.float64), target - prior, right=True)
    return block_ids * BLOCK + offset.clamp_(max=BLOCK - 1)


def cut_at_end(ids: list[int], room: int, stop_ids: Sequence[int]) -> Finish | None:
    """Remove the ids that were sampled after a row's end; return how it ended, if it did.

    ``room`` is how many tokens the row had left before these.
    """
    finish = Finish.LENGTH if room <= len(ids) else None
    del ids[room:]
    for end, token in enumerate(ids, 1):
        if token in stop_ids:
            del ids[end:]
            return Finish.STOP
    return finish


RING = 32  # steps whose tokens are kept on the device
LEAST_ROWS, LEAST_LENGTH = 8, 256
MOST_GRAPHS = 64  # beyond it all are recorded anew
BACKENDS = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]  # cuDNN's plans anew for each shape


def row_bucket(rows: int) -> int:
    """Round up to 8, 12, 16, 24, 32, 48, 64 and so on."""
    step = 1 << max(2, (rows - 1).bit_length() - 2)
    return max(LEAST_ROWS, -(-rows // step) * step)


def length_bucket(tokens: int) -> int:
    """Round up to multiples of 256, from 2,048 on to four lengths per doubling."""
    step = max(LEAST_LENGTH, 1 << max(0, (tokens - 1).bit_length() - 3))
    return -(-tokens // step) * step


NOT_RECORDED = "This GPU cannot record a decoding step: set it to { graphs = false }."
JOINED = 1 << 29  # most bytes of all gate and up projections of which copies are made


class Joined:
    """Linear layers that read the same input, as one matrix: a copy."""

    def __init__(self, *parts: Any) -> None:
        self._weights = [part.weight for part in parts]
        self._biases = [] if parts[0].bias is None else [part.bias for part in parts]
        self.weight = torch.cat(self._weights)
        self.bias = torch.cat(self._biases) if self._biases else None

    def refresh(self) -> None:
        torch.cat(self._weights, out=self.weight)
        if self.bias is not None:
            torch.cat(self._biases, out=self.bias)


class Layer:
    """Weights of a decoder layer."""

    def __init__(self, layer: Any, *, joins: bool) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.size: int = attention.head_dim
        self.scale: float = attention.scaling
        self.groups: int = attention.num_key_value_groups
        self.heads = len(attention.q_proj.weight) // self.size
        self.kv_heads = self.heads // self.groups
        self.before, self.between = layer.input_layernorm, layer.post_attention_layernorm
        self.qkv = Joined(attention.q_proj, attention.k_proj, attention.v_proj)
        self.gate, self.up = mlp.gate_proj, mlp.up_proj
        self.gate_up = Joined(self.gate, self.up) if joins else None
        self.o, self.down = attention.o_proj, mlp.down_proj
        self._attention = attention
        self.head_norm = head_norm(attention)

    @property
    def copies(self) -> list[Joined]:
        return [self.qkv] if self.gate_up is None else [self.qkv, self.gate_up]

    def refresh(self) -> None:
        for joined in self.copies:
            joined.refresh()
        if (norm := head_norm(self._attention)) is not None and self.head_norm is not None:
            self.head_norm.copy_(norm)

    def step(self, hidden: Tensor, cache: Tensor, look: Look) -> Tensor:
        """Map ``[B, hidden]``; append to ``cache [2, B, H, capacity, D]``."""
        rows, rotated = len(hidden), self.heads + self.kv_heads
        x = linear(normalized(hidden, self.before), self.qkv.weight, self.qkv.bias)
        x = x.view(rows, -1, self.size)
        qk = x[:, :rotated]
        if self.head_norm is not None:
            epsilon = self._attention.q_norm.variance_epsilon
            qk = rms_norm(qk, (self.size,), None, epsilon) * self.head_norm
        qk = torch.bmm(qk, look.turn)
        keys, values = cache.unbind()
        keys[look.slots, :, look.position] = qk[:, self.heads :]
        values[look.slots, :, look.position] = x[:, rotated:]
        length = look.bias.shape[-1]
        queries = qk[:, : self.heads].view(rows, self.kv_heads, self.groups, self.size)
        keys, values = keys[:, :, :length], values[:, :, :length]
        attended = scaled_dot_product_attention(
            queries, keys, values, attn_mask=look.bias, scale=self.scale
        )
        hidden = added(hidden, attended.reshape(rows, -1), self.o)
        x = normalized(hidden, self.between)
        if self.gate_up is None:
            gate, up = self.gate(x), self.up(x)
        else:
            gate, up = linear(x, self.gate_up.weight, self.gate_up.bias).chunk(2, -1)
        return added(hidden, silu(gate) * up, self.down)


class Look(NamedTuple):
    """Inputs that all layers share in one step."""

    slots: Tensor  # int64 [B], 0, 1, …
    position: Tensor  # int64 [B], column of the token that is read
    turn: Tensor  # [B, D, D], rotates a head to its position from the right
    bias: Tensor  # [B, 1, 1, length], 0 for what a row sees, else minus infinity


def _addresses(model: PreTrainedModel) -> list[int]:
    return [parameter.data_ptr() for parameter in model.parameters()]


@dataclass(slots=True)
class Slots:
    """The state of all rows, in place; ``S`` slots of ``capacity`` columns."""

    cache: Tensor  # [layers, 2, S, H, capacity, D]
    logits: Tensor  # [S, V], of the next token
    position: Tensor  # int64 [S], of the next token
    ids: Tensor  # int64 [S, RING], sampled since the column was set back
    logprobs: Tensor  # float32 [S, RING]
    point: Tensor  # float64 [S, 1], random numbers of the next step
    number: Tensor  # int64 [S], 0, 1, …
    column: Tensor  # int64 [1], of ids and logprobs, next to be written

    @property
    def rows(self) -> list[Tensor]:
        return [self.logits, self.position, self.ids, self.logprobs]


class StaticStep:
    """A model that :func:`~node.engines.transformers.fused_decoder.has_fused_step`; its graphs.

    Everything here runs in inference mode. Each pair of rows and length is recorded on ``stream``
    when it is first needed; the graphs stay valid until :meth:`reserve` has to grow. Without a
    stream kernels are launched one by one.

    The graphs use the matrix library's workspace of their stream, which it frees when one of them
    goes: so no other step with graphs may record on the same stream, and all go together.
    """

    def __init__(self, model: PreTrainedModel, stream: Stream | None = None) -> None:
        decoder: Any = model.model
        self.model, self._stream = model, stream
        self._addresses = _addresses(model)
        self._embeddings: Tensor = decoder.embed_tokens.weight
        self._device = self._embeddings.device
        weights = [part.weight for x in decoder.layers for part in (x.mlp.gate_proj, x.mlp.up_proj)]
        joins = sum(each.nbytes for each in weights) <= JOINED
        self.layers = [Layer(layer, joins=joins) for layer in decoder.layers]
        self._norm, self._head = decoder.norm, cast(Any, model).lm_head
        self._rotate = decoder.rotary_emb
        eye = torch.eye(self.layers[0].size, dtype=self._embeddings.dtype, device=self._device)
        self._eye, self._swap = eye, eye.roll(len(eye) // 2, 0)
        self.angles = self._embeddings[:0]  # [2, capacity, 1, D], cosines and signed sines
        self.slots = self._empty(0, 0)
        self._columns = self.slots.position  # int64 [capacity], 0, 1, …
        self._seen, self._unseen = (self._embeddings.new_tensor(x) for x in (0.0, -torch.inf))
        self._graphs: dict[tuple[int, int, float, bool], Any] = {}
        self._pool: Any = None

    def reads(self, model: PreTrainedModel) -> bool:
        """Return whether it reads this model's weights, where they are now."""
        return model is self.model and _addresses(model) == self._addresses

    @property
    def capacity(self) -> int:
        return self.slots.cache.shape[-2]

    @property
    def bytes(self) -> int:
        """Memory in addition to the model's own."""
        copies = [each.weight for layer in self.layers for each in layer.copies]
        return sum(each.nbytes for each in (*copies, self.slots.cache, self.slots.logits))

    def begin(self) -> None:
        """Begin a batch: follow the model's weights, which may have changed in place."""
        self.slots.column.zero_()
        for layer in self.layers:
            layer.refresh()

    def _forget(self) -> None:
        self._graphs.clear()
        self._pool = None  # It cannot be used again once no graph does.

    def reserve(self, rows: int, length: int, *, keep: bool = True) -> None:
        """Make room for so many rows and tokens; ``keep`` what the slots hold."""
        current = self.slots
        if rows <= len(current.position) and length <= self.capacity:
            return
        rows = max(row_bucket(rows), len(current.position))
        length = max(length_bucket(length), self.capacity)
        self._forget()
        if not keep:
            self.slots = current = self._empty(0, 0)  # Its memory is free before there is more.
        self.slots = slots = self._empty(rows, length)
        self._columns = torch.arange(length, device=self._device)
        angles = rotations(self._rotate, self._embeddings, self._columns)
        self.angles = torch.stack(angles)[:, :, None]
        slots.column.copy_(current.column)
        for new, old in zip(slots.rows, current.rows, strict=True):
            new[: len(old)] = old
        slots.cache[:, :, : current.cache.shape[2], :, : current.cache.shape[4]] = current.cache

    def _empty(self, rows: int, length: int) -> Slots:
        layer, like = self.layers[0], self._embeddings
        shape = (len(self.layers), 2, rows, layer.kv_heads, length, layer.size)
        zeros = torch.zeros(rows, dtype=torch.int64, device=self._device)
        return Slots(
            cache=like.new_zeros(shape),
            logits=like.new_zeros(rows, len(self._head.weight)),
            position=zeros,
            ids=zeros[:, None].repeat(1, RING),
            logprobs=zeros.float()[:, None].repeat(1, RING),
            point=zeros.double()[:, None],
            number=torch.arange(rows, device=self._device),
            column=torch.zeros(1, dtype=torch.int64, device=self._device),
        )

    def load(self, to: Tensor, cache: DynamicCache, lines: Tensor, lengths: Tensor) -> None:
        """Copy ``lines`` of a right-aligned cache, of these lengths, into slots; int64 ``[b]``."""
        longest = cache.get_seq_length()
        # Rows that were continued by different numbers of tokens are shorter than their cache.
        columns = self._columns[:longest]
        sources = (columns + longest - lengths[:, None]).clamp_(max=longest - 1)[:, None, :, None]
        for target, layer in zip(self.slots.cache, cache.layers, strict=True):
            past = cast(GrowingLayer, layer)
            for half, state in zip(target, (past.keys, past.values), strict=True):
                half[to, :, : len(columns)] = cast(Tensor, state)[lines].take_along_dim(sources, -2)
        self.slots.position[to] = lengths

    def copied(self, slots: Tensor, lengths: Tensor) -> DynamicCache:
        """Copy slots, of these lengths, into a right-aligned cache of their own."""
        cache, longest = growing_cache(self.model.config), int(lengths.max())
        for number, (keys, values) in enumerate(self.slots.cache):
            layer = cast(GrowingLayer, cache.layers[number])
            layer.update(keys[slots, :, :longest], values[slots, :, :longest])
        aligned(cache, longest - lengths)
        return cache

    def move(self, source: Tensor, to: Tensor, length: int) -> None:
        """Move rows to other slots."""
        for layer in self.slots.cache:
            layer[:, to, :, :length] = layer[:, source, :, :length]
        for tensor in self.slots.rows:
            tensor[to] = tensor[source]

    def run(self, rows: int, length: int, sampling: Sampling, random: Generator) -> None:
        """Do a step of the first ``rows`` slots, none of which has more than ``length`` tokens."""
        point = self.slots.point[:rows]
        torch.rand(point.shape, generator=random, dtype=point.dtype, out=point)
        if self._stream is None:
            self.step(rows, length, sampling)
            return
        key = (rows, length, sampling.temperature, sampling.greedy)
        if key not in self._graphs:
            if len(self._graphs) == MOST_GRAPHS:
                self._forget()
            self._graphs[key] = self._recorded(self._stream, rows, length, sampling)
        self._graphs[key].replay()

    def step(self, rows: int, length: int, sampling: Sampling) -> None:
        """Sample a token of each row and read it; everything is in place and on the device."""
        slots = self.slots
        position, logits = slots.position[:rows], slots.logits[:rows]
        tokens, logprobs = tokens_at(logits, sampling, slots.point[:rows])
        slots.ids[:rows].index_copy_(1, slots.column, tokens)
        slots.logprobs[:rows].index_copy_(1, slots.column, logprobs)
        slots.column.add_(1)
        bias = torch.where(self._columns[:length] > position[:, None], self._unseen, self._seen)
        cos, sin = self.angles[:, position]
        turn = torch.addcmul(cos * self._eye, sin, self._swap)
        look = Look(slots.number[:rows], position, turn, bias[:, None, None])
        hidden = embedding(tokens.squeeze(-1), self._embeddings)
        for number, layer in enumerate(self.layers):
            hidden = layer.step(hidden, slots.cache[number, :, :rows], look)
        hidden = normalized(hidden, self._norm)
        torch.mm(hidden, self._head.weight.t(), out=logits)
        if self._head.bias is not None:
            logits.add_(self._head.bias)
        position.add_(1).clamp_(max=self.capacity - 1)

    def _recorded(self, stream: Stream, rows: int, length: int, sampling: Sampling) -> CUDAGraph:
        """Record a step, after one that initializes the libraries and is then undone."""
        tensors = [getattr(self.slots, x) for x in ("logits", "position", "column")]
        originals = [tensor.clone() for tensor in tensors]
        graph = CUDAGraph()
        with torch.cuda.device(self._device), sdpa_kernel(BACKENDS):
            current = torch.cuda.current_stream()
            stream.wait_stream(current)
            with torch.cuda.stream(stream):
                self.step(rows, length, sampling)
            current.wait_stream(stream)
            for tensor, original in zip(tensors, originals, strict=True):
                tensor.copy_(original)
            if self._pool is None:
                self._pool = torch.cuda.graph_pool_handle()
            # Other threads may use the GPU meanwhile.
            recording = torch.cuda.graph(
                graph, pool=self._pool, stream=stream, capture_error_mode="thread_local"
            )
            try:
                with recording:
                    self.step(rows, length, sampling)
            except RuntimeError as error:
                raise not_recorded(error) from error
        return graph


def not_recorded(error: RuntimeError) -> Exception:
    """Return what to raise for the error that ended a recording."""
    # The end of a recording fails, too, and replaces the error that ended it.
    if of_memory(error) or isinstance(error.__context__, torch.OutOfMemoryError):
        return torch.OutOfMemoryError(str(error))
    return ConfigError("engine.backend_options", {"graphs": True}, NOT_RECORDED)
