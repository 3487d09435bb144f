from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from setuptools import Distribution, find_packages, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
INIT = (ROOT / "python" / "sglang_ddtree" / "__init__.py").read_text(encoding="utf-8")
ASSETS = ("safetensors", "json", "jsonl", "jinja", "md", "txt")
KERNELS = "sglang_ddtree._kernels.csrc"
BUILD_KERNELS = os.environ.get("DDTREE_BUILD_EXT") == "1"


class BuildKernels(build_py):
    """With DDTREE_BUILD_EXT=1, CUDA kernels are compiled now and packed, for all architectures."""

    def run(self) -> None:
        super().run()
        if not BUILD_KERNELS:
            return
        sys.path.insert(0, str(ROOT / "python"))
        from sglang_ddtree.ops.build import ARCHITECTURES, UNITS, compile_cuda

        folder = Path(self.build_lib, *KERNELS.split("."), "built")
        self.mkpath(str(folder))
        for unit in UNITS:
            for architecture in ARCHITECTURES:
                library = compile_cuda(unit, architecture)
                self.copy_file(str(library), str(folder / f"{unit}-{architecture}.so"))


class Package(Distribution):
    """A wheel with compiled kernels is for one platform."""

    def has_ext_modules(self) -> bool:
        return BUILD_KERNELS or super().has_ext_modules()


setup(
    name="sglang-ddtree",
    version=re.search(r'__version__ = "(.+)"', INIT).group(1),
    description="DDTree speculative decoding for stock SGLang",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    python_requires=">=3.11",
    cmdclass={"build_py": BuildKernels},
    distclass=Package,
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
