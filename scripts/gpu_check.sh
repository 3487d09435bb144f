#!/usr/bin/env bash
# scripts/gpu_check.sh [--out FOLDER] [--seed N]: on a machine with a GPU, builds the CUDA kernels,
# checks every kernel against float64 on fresh random inputs, times them, and writes a JSON and a
# Markdown report to benchmark/results. Some minutes; needs torch, triton and nvcc, no network.
#
#   PYTHON    the interpreter that has torch and triton (default: python3)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=${PYTHON:-python3}
"$python" -c 'import torch, triton' || {
    echo "gpu_check: $python has no torch and triton: name one that has in PYTHON" >&2
    exit 1
}
if ! command -v nvcc >/dev/null && [[ ! -x ${CUDA_HOME:-/usr/local/cuda}/bin/nvcc ]]; then
    echo "gpu_check: no nvcc: install the CUDA toolkit, or set CUDA_HOME" >&2
    exit 1
fi
export PYTHONPATH="$PWD/python:$PWD/benchmark${PYTHONPATH:+:$PYTHONPATH}"
exec "$python" benchmark/gpu_check.py "$@"
