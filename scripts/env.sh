#!/usr/bin/env bash
# Prepares the Python environment of this checkout if it is missing and prints its folder.
#
# The environment lies outside the checkout and is named by a hash of the requirements, so that
# checkouts with the same requirements share it. It holds everything but sglang_ddtree itself:
# scripts/run.sh puts this checkout's package on the path.
#
#   SGLANG_DDTREE_HOME    where environments are kept (default: ~/.cache/sglang-ddtree)
#   SGLANG_DDTREE_KIND    cpu or gpu (default: gpu where nvidia-smi lists one)
#   SGLANG_DDTREE_PYTHON  the Python 3.11 to build with (default: python3.11, then python3)
set -euo pipefail

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
home=${SGLANG_DDTREE_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/sglang-ddtree}

say() { echo "sglang-ddtree: $*" >&2; }
fail() {
    say "$*"
    exit 1
}

has_gpu() {
    command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q '^GPU '
}

# Prints a Python that can make a virtual environment, or says what is wrong with each one found.
find_python() {
    local candidate reasons=""
    for candidate in ${SGLANG_DDTREE_PYTHON:-python3.11 python3}; do
        if ! command -v "$candidate" >/dev/null; then
            reasons+="; $candidate: not found"
        elif ! "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
            reasons+="; $candidate: not Python 3.11"
        elif ! "$candidate" -c 'import ensurepip, venv' 2>/dev/null; then
            reasons+="; $candidate: no venv module (Debian and Ubuntu: install python3.11-venv)"
        else
            command -v "$candidate"
            return
        fi
    done
    fail "needs Python 3.11 with its venv module: ${reasons#; }." \
        "Install it, or name one in SGLANG_DDTREE_PYTHON."
}

require_disk_gb() {
    local free_gb
    free_gb=$(df -Pk "$home" | awk 'NR == 2 {print int($4 / 1048576)}')
    ((free_gb >= $1)) || fail "needs $1 GB of disk space in $home, which has $free_gb GB:" \
        "free some, or set SGLANG_DDTREE_HOME to a folder on another disk."
}

# The marker comes last: a folder without it was left half-built, and is built anew. Wheels are
# unpacked inside the folder too, because /tmp is often a small file system in memory.
build() {
    local python
    python=$(find_python)
    require_disk_gb "$disk_gb"
    say "preparing the $kind environment, once and for some minutes: $env"
    rm -rf "$env"
    "$python" -m venv "$env"
    mkdir "$env/tmp"
    TMPDIR=$env/tmp "$env/bin/python" -m pip install --disable-pip-version-check --no-cache-dir \
        --no-deps "${requirements[@]/#/--requirement=}"
    rm -r "$env/tmp"
    cat >"$env/bin/sglang-ddtree" <<'SHIM'
#!/bin/sh
exec python -c 'import sys; from sglang_ddtree.cli import main; sys.exit(main())' "$@"
SHIM
    chmod +x "$env/bin/sglang-ddtree"
    echo "$kind" >"$env/complete"
    say "environment ready"
}
is_built() { [[ -e $env/complete && -x $env/bin/python ]]; }

# SGLang finds plugins in the metadata of the distributions on the path: this checkout's is made
# beside its package. SOURCES.txt is what setuptools writes last.
build_metadata() { (cd "$repo" && "$env/bin/python" setup.py --quiet egg_info); }
metadata_is_current() {
    local sources=$repo/python/sglang_ddtree.egg-info/SOURCES.txt
    [[ $sources -nt $repo/setup.py && $sources -nt $repo/pyproject.toml &&
        $sources -nt $repo/python/sglang_ddtree/__init__.py ]]
}

kind=${SGLANG_DDTREE_KIND:-$(has_gpu && echo gpu || echo cpu)}
case $kind in
    cpu) disk_gb=10 ;;
    gpu) disk_gb=18 ;;
    *) fail "SGLANG_DDTREE_KIND is '$kind', but must be cpu or gpu" ;;
esac
requirements=("$repo/requirements/$kind.txt" "$repo/requirements/sglang.txt")
hash=$(sha256sum <<<"python3.11 $(cat "${requirements[@]}")")
env=$home/env-${hash:0:12}

if ! is_built || ! metadata_is_current; then
    mkdir -p "$home"
    exec 9>"$env.lock"
    flock 9 # scripts started at the same time wait for the one that builds
    is_built || build >&2
    metadata_is_current || build_metadata >&2
fi
echo "$env"
