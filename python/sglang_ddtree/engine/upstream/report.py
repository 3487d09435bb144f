"""The report behind ``sglang-ddtree check``."""

from __future__ import annotations

import importlib.metadata
import platform
from dataclasses import replace

import torch

PACKAGES = ("sglang", "torch", "transformers", "triton", "flashinfer-python", "sglang-kernel")


def report(*, show_all: bool) -> int:
    """Print versions, platform, seams and kernels.

    Returns:
        0 when DDTREE can serve here, or SGLang has its own; 1 otherwise, every reason printed.
    """
    print("versions")
    print(f"  {'python':20} {platform.python_version()}")
    for package in ("sglang-ddtree", *PACKAGES):
        print(f"  {package:20} {_version(package)}")
    try:
        from sglang_ddtree.engine.upstream import seams
    except ImportError as error:
        return _verdict([f"this installation is incomplete: {error}"])
    if _version("sglang") == "-":
        return _verdict([f"sglang is not installed: pip install 'sglang=={seams.SGLANG_VERSION}'"])
    if seams.upstream_has_ddtree():
        print("this SGLang ships DDTREE itself; sglang-ddtree steps aside")
        return 0
    _print_platform()
    problems = seams.problems()
    _print_seams(show_all)
    if not _entry_point_found():
        problems.append(
            "SGLang can't see the plugin: no entry point 'ddtree' in group 'sglang.srt.plugins'; "
            "install sglang-ddtree with pip, or use scripts/run.sh"
        )
    return _verdict(problems)


def _print_platform() -> None:
    from sglang_ddtree.platform import activate

    print("platform")
    if activate() is not None:
        print("  device               cpu (sglang-ddtree's torch platform)")
        print("  trees                torch operations, attention backend torch_tree")
        device = torch.device("cpu")
    else:
        accelerator = torch.accelerator.current_accelerator()
        assert accelerator is not None, "activate() steps aside for one"
        device = accelerator
        print(f"  device               {device}")
        print("  trees                the kernels below; of a target that they do not cover,")
        print("                       SGLang's triton backend with a custom mask")
    _print_kernels(device)


def _print_kernels(device: torch.device) -> None:
    """What the dispatch table has for widths of large models; a server prints its own."""
    from sglang_ddtree.ops import dispatch

    found = dispatch.Device.of(device)
    heads = dispatch.Shape(nodes=32, heads=8)
    latent = replace(heads, dim=576, v_dim=512)
    recurrent = replace(heads, cache=torch.float32)
    shapes = {
        dispatch.GQA: heads,
        dispatch.MLA: latent,
        dispatch.VERIFY: recurrent,
        dispatch.COMMIT: recurrent,
        dispatch.GROW: heads,
        dispatch.ACCEPT: heads,
        dispatch.MOVE: heads,
    }
    choices = [dispatch.choose(operation, found, shape) for operation, shape in shapes.items()]
    print("kernels of --decode-attention-backend ddtree, in bfloat16")
    for line in dispatch.describe(choices).splitlines():
        print(f"  {line}")


def _print_seams(show_all: bool) -> None:
    from sglang_ddtree.engine.upstream import seams

    rows = seams.relevant() + seams.TOOL_SEAMS
    bad = {seam.path: problem for seam in rows if (problem := seam.problem()) is not None}
    print(f"seams: {len(rows) - len(bad)} of {len(rows)} fit")
    for seam in rows:
        if seam.path in bad:
            print(f"  MISMATCH {bad[seam.path]}")
        elif show_all:
            print(f"  ok       {seam.path}  ({seam.why})")


def _entry_point_found() -> bool:
    found = importlib.metadata.entry_points(group="sglang.srt.plugins", name="ddtree")
    return any(True for _ in found)


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "-"


def _verdict(problems: list[str]) -> int:
    if not problems:
        print("DDTREE can serve here.")
        return 0
    print("DDTREE can't serve here:")
    for problem in problems:
        print(f"  - {problem}")
    return 1
