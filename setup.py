from __future__ import annotations

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
INIT = (ROOT / "python" / "sglang_ddtree" / "__init__.py").read_text(encoding="utf-8")
ASSETS = ("safetensors", "json", "jsonl", "jinja", "md", "txt")
KERNELS = "sglang_ddtree._kernels.csrc"

setup(
    name="sglang-ddtree",
    version=re.search(r'__version__ = "(.+)"', INIT).group(1),
    description="DDTree speculative decoding for stock SGLang",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    python_requires=">=3.11",
    package_dir={"": "python", KERNELS: "csrc"},
    packages=[*find_packages("python"), KERNELS, f"{KERNELS}.triton"],
    package_data={
        "sglang_ddtree": [
            *(f"assets/**/*.{suffix}" for suffix in ASSETS),
            "cluster/configs/*.json",
        ],
        KERNELS: ["*.cu", "include/ddtree/*.cuh"],
    },
    # SGLang brings several GB of CUDA kernels: whoever runs without a GPU installs it with
    # --no-deps and the roots of requirements/cpu.in instead.
    install_requires=["torch"],
    extras_require={
        "sglang": ["sglang==0.5.23"],
        # plan: GPUs and pictures; launch: processes and SGLang's router in front of replicas.
        "cluster": ["matplotlib", "nvidia-ml-py", "psutil", "sglang-router"],
        "dev": ["clang-format", "hypothesis", "mypy", "pytest", "pytest-timeout", "ruff"],
    },
    entry_points={
        "sglang.srt.plugins": ["ddtree = sglang_ddtree.engine.plugin:register"],
        "sglang.srt.platforms": ["ddtree = sglang_ddtree.platform:activate"],
        "console_scripts": ["sglang-ddtree = sglang_ddtree.cli:main"],
    },
)
