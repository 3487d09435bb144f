#!/usr/bin/env bash
# scripts/test.sh [PYTEST ARGS]: lint, types and tests, in this checkout's environment. All stages
# run whatever the earlier ones gave; any failure fails the script.
#
#   scripts/test.sh                                 everything
#   scripts/run.sh pytest test/unit -k topology     a few tests alone, without lint and types
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

failed=()
stage() {
    echo "== $1"
    scripts/run.sh "${@:2}" || failed+=("$1")
}

scripts/env.sh >/dev/null
stage "ruff check" ruff check .
stage "ruff format" ruff format --check .
stage "mypy" mypy
mapfile -t sources < <(find csrc -regex '.*\.\(cu\|cuh\|h\|cpp\)' 2>/dev/null)
if ((${#sources[@]} > 0)); then
    stage "clang-format" clang-format --dry-run -Werror "${sources[@]}"
fi
stage "pytest" pytest "$@"

if ((${#failed[@]} > 0)); then
    printf 'FAILED: %s\n' "${failed[@]}" >&2
    exit 1
fi
