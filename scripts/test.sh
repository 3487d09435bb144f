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

# A server computes on one core and most tests wait for one, so two lanes run side by side: tests
# that start servers of their own, and all others. The first lane's output is kept for the end.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
echo "== pytest, in two lanes"
lane=$(mktemp)
set -m # or a background process would ignore the interrupt that has pytest stop its servers
scripts/run.sh pytest -m own_servers "$@" >"$lane" 2>&1 &
set +m
own=$! statuses=()
trap 'kill -INT "$own" 2>/dev/null || true; rm -f "$lane"' EXIT
status=0 && scripts/run.sh pytest -m "not own_servers" "$@" || status=$?
statuses+=("$status")
status=0 && wait "$own" || status=$?
trap 'rm -f "$lane"' EXIT
statuses+=("$status")
echo "== pytest, tests that start servers of their own"
cat "$lane"
# 5 is a lane in which the arguments select nothing.
[[ ${statuses[*]} =~ ^(0 0|0 5|5 0)$ ]] || failed+=("pytest: ${statuses[*]}")

if ((${#failed[@]} > 0)); then
    printf 'FAILED: %s\n' "${failed[@]}" >&2
    exit 1
fi
