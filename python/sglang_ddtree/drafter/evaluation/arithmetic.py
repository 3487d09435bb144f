"""``drafter plan``: memory, disk and time of making a drafter for a large target."""

from __future__ import annotations

from dataclasses import dataclass

from sglang_ddtree.cluster.facts.models import ModelFacts

# float32 weight, gradient and AdamW's two moments.
TRAINED_BYTES = 16
# Of a card's memory, what can be allocated; what the server's KV pool and buffers and what the
# trainer's activations (bounded by its --piece) want of it.
USABLE = 0.94
SERVER_ROOM = TRAINER_ROOM = 10e9
HOUR = 3600

# What others report, as they report it; none of it was measured with this package.
PUBLISHED = (
    "Kimi-Linear-48B: 240k samples answered by the target, 1 epoch, 59,867 steps: 12 h 41 min on "
    "2x B200; accept length 5.21 on Math500 (2.36 with 30k samples)",
    "SpecForge, D-PACE against decay: Qwen3-8B, 50k samples, 3 epochs, 4,623 steps on 8x H200, "
    "lr 6e-4; simulated accept length 4.61 with decay (1-layer drafter)",
    "SpecForge: Qwen3-8B with a Domino head, 1 capture and 7 training H200s: 28.8 to 50.1 "
    "samples/s",
    "Qwen3.5-397B NVFP4, 650k samples x 6 epochs on 4x B200: accepted too little, slower than no "
    "drafter at all",
    "drafters for Kimi K2.5 and K2.6 that are published: EAGLE3 ones (lightseekorg), made with "
    "TorchSpec",
)


@dataclass(frozen=True)
class Job:
    """What is to be trained, and on what.

    Attributes:
        samples: answers of the target. prompt, answer: tokens of one, on average.
        anchors: blocks of a sample in one epoch.
        gpus, gpu_memory, disk: of the box, in bytes.
        generate_rate, capture_rate: tokens a second of the served target, writing and prefilling.
        flops: sustained by one card in training, per second.
    """

    samples: int
    prompt: int
    answer: int
    epochs: int
    anchors: int
    gpus: int
    gpu_memory: int
    disk: int
    generate_rate: float
    capture_rate: float
    flops: float

    @property
    def tokens(self) -> int:
        return self.samples * (self.prompt + self.answer)


@dataclass(frozen=True)
class Arithmetic:
    """The figures; bytes and seconds."""

    drafter_params: float
    feature_bytes_a_token: int
    feature_bytes: int
    slices: int
    trainer_bytes_a_card: float
    target_bytes_a_card: float
    fits_together: bool
    generate_s: float
    capture_s: float
    train_s: float


def calculate(model: ModelFacts, job: Job) -> Arithmetic:
    """All figures of a job."""
    drafter = model.drafter
    params = drafter.weight_bytes / 2  # bf16 in the checkpoint
    a_token = drafter.captured * model.hidden * 2
    total = job.tokens * a_token
    ends = model.embedding_bytes + model.head_bytes
    trainer = params * TRAINED_BYTES / job.gpus + ends
    target = model.weight_bytes / job.gpus
    return Arithmetic(
        drafter_params=params,
        feature_bytes_a_token=a_token,
        feature_bytes=total,
        slices=max(1, -(-total // job.disk)),
        trainer_bytes_a_card=trainer,
        target_bytes_a_card=target,
        fits_together=trainer + target + SERVER_ROOM + TRAINER_ROOM < USABLE * job.gpu_memory,
        generate_s=job.samples * job.answer / job.generate_rate,
        capture_s=job.tokens / job.capture_rate,
        train_s=training_flops(model, job) / (job.gpus * job.flops),
    )


def training_flops(model: ModelFacts, job: Job) -> float:
    """Multiply-adds of all epochs, forward and backward, counted as two operations.

    A block's rows pass the whole drafter and the head, whose own weights get no gradient; a
    context token passes ``fc`` and the key and value projections alone.
    """
    drafter = model.drafter
    params = drafter.weight_bytes / 2
    feature = drafter.captured * model.hidden * model.hidden
    kv = drafter.layers * model.hidden * 2 * drafter.kv_heads * drafter.head_dim
    rows = job.anchors * drafter.block
    head = model.vocabulary * model.hidden
    sample = rows * (6 * (params - feature) + 4 * head)
    sample += (job.prompt + job.answer) * 6 * (feature + kv)
    return job.samples * job.epochs * sample


def report(model: ModelFacts, job: Job, found: Arithmetic) -> str:
    """The figures as lines of text."""
    drafter = model.drafter
    place = (
        "target and training fit side by side"
        if found.fits_together
        else "they do not fit side by side: time-slice (capture a slice, stop the target, train, "
        "delete the slice, next), or train on a second node"
    )
    lines = [
        f"{model.name}: {job.samples:,} samples x ({job.prompt:,} + {job.answer:,}) tokens, "
        f"{job.epochs} epochs, {job.gpus} cards of {job.gpu_memory / 1e9:.0f} GB",
        "",
        f"drafter      {found.drafter_params / 1e9:.2f} billion parameters, {drafter.layers} "
        f"layers, block {drafter.block}, reads {drafter.captured} target layers",
        f"memory       target {found.target_bytes_a_card / 1e9:.1f} GB a card, training "
        f"{found.trainer_bytes_a_card / 1e9:.1f} GB a card (FSDP2 over {job.gpus}: {TRAINED_BYTES} "
        "bytes a parameter, and the target's embedding and head), and "
        f"{SERVER_ROOM / 1e9:.0f} GB each for the KV pool and for activations",
        f"             {place}",
        f"features     {found.feature_bytes_a_token / 1e3:.1f} KB a token, "
        f"{found.feature_bytes / 1e12:.2f} TB in all; with {job.disk / 1e12:.1f} TB of disk "
        + ("all at once" if found.slices == 1 else f"in {found.slices} slices, or online"),
        f"time         generate {found.generate_s / HOUR:.1f} h at {job.generate_rate:,.0f} tok/s",
        f"             capture {found.capture_s / HOUR:.1f} h at {job.capture_rate:,.0f} tok/s of "
        f"prefill{'' if job.epochs == 1 else ', for each epoch where slices are deleted'}",
        f"             train {found.train_s / HOUR:.1f} h at {job.flops / 1e12:.0f} TFLOP/s a "
        f"card, {job.anchors} anchors a sample",
        "             rates are assumptions of yours or this command's defaults: measure a hundred "
        "samples first",
        "",
        "Published figures of others, for comparison:",
        *(f"  - {point}" for point in PUBLISHED),
    ]
    for group in model.uncertain:
        lines.append(f"uncertain: {group}: {model.sources.get(group, '')}")
    return "\n".join(lines)
