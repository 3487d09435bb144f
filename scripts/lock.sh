#!/usr/bin/env bash
# Resolves requirements/{gpu,cpu}.in into requirements/{gpu,cpu}.txt: run it when an .in file or
# SGLang's version changes. Nothing is installed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Once, up front: the environment's name depends on the very files that are rewritten below.
python=$(scripts/env.sh)/bin/python
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# lock KIND [PIP OPTIONS]. sglang stays out of the lock, it has its own file.
lock() {
    local kind=$1
    echo "lock: resolving requirements/$kind.in" >&2
    "$python" -m pip install --quiet --dry-run --ignore-installed --report "$work/report.json" \
        --requirement "requirements/$kind.in" "${@:2}"
    "$python" - "$work/report.json" >"$work/lock.txt" <<'PYTHON'
import json
import re
import sys

with open(sys.argv[1], encoding="utf-8") as report:
    found = [item["metadata"] for item in json.load(report)["install"]]
pins = {re.sub(r"[-_.]+", "-", item["name"]).lower(): item["version"] for item in found}
print("# Made by scripts/lock.sh: edit the .in file instead.")
for name in sorted(pins.keys() - {"sglang"}):
    print(f"{name}=={pins[name]}")
PYTHON
    mv "$work/lock.txt" "requirements/$kind.txt"
}

lock gpu
lock cpu --constraint requirements/gpu.txt
