"""Whether SGLang hands out a target's hidden states, which every DFlash drafter reads."""

from __future__ import annotations

from typing import Any


class UnknownArchitectureError(ValueError):
    """SGLang has no model class for a target."""


def is_captured(config: Any) -> bool:
    """Whether SGLang's model class has the hook that DFLASH captures through.

    Args:
        config: SGLang's ``ModelConfig`` of the target.

    Raises:
        UnknownArchitectureError: SGLang does not know the architecture.
    """
    from sglang.srt.model_loader.utils import get_model_architecture

    try:
        model_class, _ = get_model_architecture(config)
    except ValueError as error:
        named = ", ".join(config.hf_config.architectures or ["none"])
        raise UnknownArchitectureError(f"SGLang has no model class for {named}: {error}") from error
    return hasattr(model_class, "set_dflash_layers_to_capture")


def capture_problem(config: Any) -> str | None:
    """Why no DFlash drafter can be served with a target, or ``None``.

    Args:
        config: SGLang's ``ModelConfig`` of the target.
    """
    try:
        if is_captured(config):
            return None
    except UnknownArchitectureError as error:
        return str(error)
    return no_capture(config.hf_config.architectures[0])


def no_capture(architecture: str) -> str:
    """The refusal of a target that SGLang does not capture from."""
    return (
        f"SGLang's {architecture} has no set_dflash_layers_to_capture: this architecture can't be "
        "served with a DFlash drafter"
    )
