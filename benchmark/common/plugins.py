"""SGLang plugins of a server under measurement, in every process of it."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path


def announce(folder: Path, *modules: str) -> dict[str, str]:
    """Make SGLang call ``register()`` of ``modules`` in every process of a server.

    Args:
        folder: an empty one, kept as long as the server runs; receives the entry points.
        modules: names under which this process could import them.

    Returns:
        Variables for the server's environment.
    """
    roots = [str(folder)]
    for module in modules:
        distribution = module.replace(".", "_")
        info = folder / f"{distribution}-1.dist-info"
        info.mkdir(parents=True)
        metadata = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1\n"
        (info / "METADATA").write_text(metadata)
        entry = f"[sglang.srt.plugins]\n{distribution} = {module}:register\n"
        (info / "entry_points.txt").write_text(entry)
        roots.append(str(_root(module)))
    return {"PYTHONPATH": os.pathsep.join([*roots, os.environ.get("PYTHONPATH", "")])}


def _root(module: str) -> Path:
    """The folder on ``sys.path`` that a module is imported from."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"no module {module}", name=module)
    return Path(spec.origin).parents[module.count(".")]
