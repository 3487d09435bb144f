"""Whether a model fits a group: the bytes of one rank, item by item."""

from __future__ import annotations

from dataclasses import dataclass

from sglang_ddtree.cluster.facts.models import ModelFacts
from sglang_ddtree.recurrent_mode import DEFAULT_RECURRENT_MODE, RecurrentMode

# CUDA context, activations of a prefill chunk, attention partials, NCCL buffers. An assumption;
# what SGLang leaves with its default memory fraction on 80 to 96 GB cards is of this size.
WORKSPACE_BYTES = 6 << 30


@dataclass(frozen=True)
class Load:
    """What one replica serves.

    batch: running requests. context: tokens of each. budget: nodes under the root, 0 for plain
    decoding without a drafter. recurrent_mode: as ``--speculative-ddtree-recurrent``: ``stash``
    keeps what the accepted state is rebuilt from, ``snapshot`` one recurrent state per node, as the
    pool of SGLang does for ``speculative_num_draft_tokens``
    (srt/mem_cache/memory_pool.py:864@0.5.23). kv_element_bytes: 2 for bf16, 1 for fp8.
    """

    batch: int
    context: int
    budget: int
    recurrent_mode: RecurrentMode = DEFAULT_RECURRENT_MODE
    kv_element_bytes: int = 2

    def __post_init__(self) -> None:
        if self.batch < 1 or self.context < 1 or self.budget < 0:
            raise ValueError(f"no load: {self}")

    @property
    def nodes(self) -> int:
        """N, the nodes that one verify step scores for each request."""
        return self.budget + 1


@dataclass(frozen=True)
class MemoryItem:
    """One line of a bill: bytes on one rank and how they come about."""

    label: str
    amount: int
    arithmetic: str


@dataclass(frozen=True)
class MemoryBill:
    """All device memory of one rank."""

    items: tuple[MemoryItem, ...]

    @property
    def total(self) -> int:
        """Sum in bytes."""
        return sum(item.amount for item in self.items)

    def amount(self, label: str) -> int:
        """Bytes under a label; 0 where the bill has no such item."""
        return sum(item.amount for item in self.items if item.label == label)

    def explain(self, capacity: int) -> str:
        """The sum against the memory of a card, item by item."""
        terms = " + ".join(f"{item.label} {gb(item.amount)}" for item in self.items)
        verdict = "<=" if self.total <= capacity else ">"
        return f"{terms} = {gb(self.total)} {verdict} {gb(capacity)} GB a card"


def gb(amount: float) -> str:
    """Bytes in decimal gigabytes, as cards and checkpoints are sold."""
    return f"{amount / 1e9:.1f}"


def memory_bill(model: ModelFacts, tp: int, load: Load) -> MemoryBill:
    """Device memory of one rank of a replica with `tp` ranks that serves `load`."""
    sharded = model.weight_bytes - model.replicated_bytes
    items = [
        MemoryItem(
            "weights",
            sharded // tp + model.replicated_bytes,
            f"{gb(sharded)} / {tp} + {gb(model.replicated_bytes)} on every rank",
        ),
        *_kv_items(model, tp, load),
    ]
    if load.budget:
        items += _tree_items(model, tp, load)
    if model.recurrent is not None:
        items += _recurrent_items(model, tp, load)
    logits = 4 * model.vocabulary
    captured = 2 * model.hidden * model.drafter.captured if load.budget else 0
    items.append(
        MemoryItem(
            "graphs",
            load.batch * load.nodes * (logits + captured),
            f"outputs of the step's graph: {load.batch} x {load.nodes} nodes x {logits} B of "
            f"logits, {captured} B captured",
        )
    )
    items.append(
        MemoryItem("workspace", WORKSPACE_BYTES, "context, activations, partials, NCCL (assumed)")
    )
    return MemoryBill(tuple(items))


def _kv_items(model: ModelFacts, tp: int, load: Load) -> list[MemoryItem]:
    """Rows of the context and, apart, those that a step writes before it knows what is accepted."""

    # DFlash workers reserve twice the verify width (DFlashDraftInputV2@0.5.23).
    rows = 2 * load.nodes if load.budget else 1
    sizes = [(layers, layers.row_bytes(tp, load.kv_element_bytes)) for layers in model.kv]
    prefix = sum(size * layers.kept(load.context) for layers, size in sizes)
    tree = rows * sum(size for _, size in sizes)
    label = "latent KV" if model.latent else "KV"
    return [
        MemoryItem(
            label,
            load.batch * prefix,
            f"{load.batch} x {load.context} tokens, {prefix / 1e6:.1f} MB a request",
        ),
        MemoryItem("tree rows", load.batch * tree, f"{load.batch} x {rows} KV rows reserved"),
    ]


def _tree_items(model: ModelFacts, tp: int, load: Load) -> list[MemoryItem]:
    """The drafter: its weights and the KV cache of the committed context."""
    drafter, row = model.drafter, model.drafter.kv_row_bytes(tp)
    rows = load.context + 2 * load.nodes
    return [
        MemoryItem("drafter", drafter.weight_bytes // tp, f"{gb(drafter.weight_bytes)} / {tp}"),
        MemoryItem("drafter KV", load.batch * rows * row, f"{load.batch} x {rows} x {row} B"),
    ]


def _recurrent_items(model: ModelFacts, tp: int, load: Load) -> list[MemoryItem]:
    assert model.recurrent is not None
    state = model.recurrent.state_bytes // tp
    # One committed state and one prefix-cache checkpoint of each request.
    items = [
        MemoryItem("states", 2 * load.batch * state, f"2 x {load.batch} x {state / 1e6:.1f} MB")
    ]
    if load.budget and load.recurrent_mode == "snapshot":
        size = (load.batch + 1) * load.nodes * state
        text = f"{load.batch + 1} slots x {load.nodes} nodes x {state / 1e6:.1f} MB"
        items.append(MemoryItem("tree states", size, text))
    elif load.budget:
        stash = model.recurrent.stash_bytes(tp)
        size = load.batch * load.nodes * stash
        text = f"{load.batch} x {load.nodes} nodes x {stash / 1e6:.2f} MB"
        items.append(MemoryItem("tree stash", size, text))
    return items
