#!/usr/bin/env bash
usage() {
    cat <<'HELP'
usage: scripts/serve.sh [--pair NAME] [SGLANG FLAGS]

Serves a model with DDTREE on SGLang, after preparing the environment if it is missing.

  scripts/serve.sh
      SmolLM2-135M-Instruct (fetched once, 98 MB) and the drafter that ships for it, on
      127.0.0.1:30000
  scripts/serve.sh --pair tiny-hybrid
      another bundled pair: tiny-dense, tiny-hybrid, tiny-mla or tiny-swa, which write Python
  scripts/serve.sh --port 31000 --speculative-ddtree-budget 63
      the bundled pair with these flags added
  scripts/serve.sh --model-path TARGET --speculative-draft-model-path DRAFTER
      your own pair; DDTREE is chosen unless --speculative-algorithm names another

Every other flag goes to python -m sglang.launch_server. See all of them, DDTREE's included, with
  scripts/run.sh python -m sglang.launch_server --help
Where environments are kept and built from: the head of scripts/env.sh.
HELP
}
set -euo pipefail

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
pairs=$repo/pairs
host=127.0.0.1 port=30000 pair="" model="" drafter="" algorithm="" budget=""

fail() {
    echo "sglang-ddtree: $*" >&2
    exit 1
}

flags=()
while (($# > 0)); do
    value=${2:-}
    if [[ $1 == --*=* ]]; then value=${1#*=}; fi
    case ${1%%=*} in
        -h | --help) usage && exit ;;
        --host) host=$value ;;
        --port) port=$value ;;
        --model-path | --model | --config) model=default ;;
        --speculative-draft-model-path | --speculative-draft-model) drafter=$value ;;
        --speculative-algorithm | --speculative-algo) algorithm=$value ;;
        --speculative-ddtree-budget) budget=$value ;;
        --pair)
            pair=${value:?--pair needs a name}
            [[ $1 == --*=* ]] || shift
            (($# > 0)) && shift
            continue
            ;;
    esac
    flags+=("$1")
    shift
done
if [[ -z $model ]]; then
    pair=${pair:-smollm2}
    names=("$pairs"/*/drafter)
    names=("${names[@]%/drafter}")
    [[ -d $pairs/$pair/drafter ]] || fail "no pair '$pair'; there are ${names[*]##*/}"
elif [[ -n $pair ]]; then
    fail "--pair and --model-path are two targets: give one of them"
fi
case $host in
    0.0.0.0) reach=127.0.0.1 ;;
    ::) reach=::1 ;;
    *) reach=$host ;;
esac

# Through bash itself, because a machine may have no curl.
connects() { (exec 3<>"/dev/tcp/$reach/$port") 2>/dev/null; }
if connects; then fail "something already listens on $reach:$port; give another --port"; fi

env=$("$repo/scripts/env.sh")
defaults=()
question="Write a record class for a book with title, author and year."
if [[ -n $pair ]]; then
    kind=$(<"$env/complete")
    model=$pair target=$pairs/$pair/target tree=(--speculative-ddtree-budget 31)
    if [[ $pair == smollm2 ]]; then
        target=$("$repo/scripts/run.sh" python -m sglang_ddtree.drafter.smollm2)
        tree=(--speculative-ddtree-budget 15)
        # On a CPU the smallest tree is the fastest (docs/measuring.md).
        if [[ $kind == cpu ]]; then
            tree=(--speculative-ddtree-budget 3 --no-speculative-ddtree-spine)
        fi
        question="Explain in simple words why the sky is blue."
    fi
    # The shape belongs to the budget: whoever names a budget of their own gets a spine.
    if [[ -n $budget ]]; then tree=(); fi
    defaults=(
        --model-path "$target" --served-model-name "$pair"
        --speculative-draft-model-path "$pairs/$pair/drafter"
        --speculative-algorithm DDTREE "${tree[@]}"
        --max-total-tokens 32768 --max-running-requests 16
    )
    if [[ $kind == cpu ]]; then defaults+=(--device cpu --dtype float32); fi
elif [[ -n $drafter && -z $algorithm ]]; then
    defaults=(--speculative-algorithm DDTREE)
fi

healthy() {
    (
        exec 3<>"/dev/tcp/$reach/$port"
        printf 'GET /health HTTP/1.0\r\n\r\n' >&3
        read -r -t 30 _ status _ <&3
        [[ $status == 200 ]]
    ) 2>/dev/null
}
# Its input is a pipe that only the server holds open: reading times out while the server lives.
announce_when_ready() {
    until healthy; do
        read -r -t 0.5 || (($? > 128)) || return
    done
    [[ $reach == *:* ]] && reach="[$reach]"
    cat <<READY

sglang-ddtree: $model is ready on http://$reach:$port. Try:

curl -s http://$reach:$port/v1/chat/completions -H 'Content-Type: application/json' -d '{
  "model": "$model", "max_tokens": 128, "temperature": 0, "return_spec_tokens_details": true,
  "messages": [{"role": "user", "content": "$question"}]
}'

Stop with Ctrl-C.

READY
}

# The server takes over this shell's process, so that signals reach it. The announcer is no child
# of the server's, and ends when the server is up or gone.
exec 9> >(announce_when_ready <&0 &)
wait $!
exec "$repo/scripts/run.sh" python -m sglang.launch_server "${defaults[@]}" "${flags[@]}"
