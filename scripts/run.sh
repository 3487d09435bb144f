#!/usr/bin/env bash
# scripts/run.sh COMMAND...: runs a command in this checkout's environment, prepared if missing.
set -euo pipefail

if (($# == 0)); then
    echo "usage: scripts/run.sh COMMAND...   e.g. scripts/run.sh sglang-ddtree check" >&2
    exit 2
fi
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
VIRTUAL_ENV=$("$repo/scripts/env.sh")
export VIRTUAL_ENV
export PATH="$VIRTUAL_ENV/bin:$PATH"
export PYTHONPATH="$repo/python${PYTHONPATH:+:$PYTHONPATH}"
unset PYTHONHOME
if [[ ${SGLANG_DDTREE_KIND:-} == cpu ]]; then
    export CUDA_VISIBLE_DEVICES="" # asked for on a machine that has a GPU
fi
exec "$@"
