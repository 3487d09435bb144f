"""What pyproject.toml can't say: kernels lie in csrc/, and may be compiled on installation."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from setuptools import Distribution, find_packages, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
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
    cmdclass={"build_py": BuildKernels},
    distclass=Package,
    package_dir={"": "python", KERNELS: "csrc"},
    packages=[*find_packages("python"), KERNELS, f"{KERNELS}.triton"],
    package_data={
        "sglang_ddtree": ["py.typed", "cluster/configs/*.json"],
        KERNELS: ["*.cu", "include/ddtree/*.cuh"],
    },
)
