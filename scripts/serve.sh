#!/usr/bin/env bash
usage() {
    cat <<'HELP'
usage: scripts/serve.sh [SGLANG FLAGS]

Serves a model with DDTREE on SGLang, after preparing the environment if it is missing.

  scripts/serve.sh
      the bundled tiny-dense pair, on 127.0.0.1:30000
  scripts/serve.sh --port 31000 --speculative-ddtree-budget 63
      the bundled pair with these flags added
  scripts/serve.sh --model-path TARGET --speculative-draft-model-path DRAFTER
      your own pair; DDTREE is chosen unless --speculative-algorithm names another

Every flag goes to python -m sglang.launch_server. See all of them, DDTREE's included, with
  scripts/run.sh python -m sglang.launch_server --help
Where environments are kept and built from: the head of scripts/env.sh.
HELP
}
set -euo pipefail

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
pair=$repo/python/sglang_ddtree/assets/tiny-dense
host=127.0.0.1 port=30000 model=tiny-dense drafter="" algorithm=""

flags=("$@")
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
    esac
    shift
done
case $host in
    0.0.0.0) reach=127.0.0.1 ;;
    ::) reach=::1 ;;
    *) reach=$host ;;
esac

env=$("$repo/scripts/env.sh")
defaults=()
if [[ $model == tiny-dense ]]; then
    defaults=(
        --model-path "$pair/target" --served-model-name tiny-dense
        --speculative-draft-model-path "$pair/drafter"
        --speculative-algorithm DDTREE --speculative-ddtree-budget 31
        --max-total-tokens 32768 --max-running-requests 16
    )
    if [[ $(<"$env/complete") == cpu ]]; then defaults+=(--device cpu --dtype float32); fi
elif [[ -n $drafter && -z $algorithm ]]; then
    defaults=(--speculative-algorithm DDTREE)
fi

# Through bash itself, because a machine may have no curl.
connects() { (exec 3<>"/dev/tcp/$reach/$port") 2>/dev/null; }
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
  "messages": [{"role": "user", "content": "Write a record class for a book with title, author and year."}]
}'

Stop with Ctrl-C.

READY
}

if connects; then
    echo "sglang-ddtree: something already listens on $reach:$port; give another --port" >&2
    exit 1
fi
# The server takes over this shell's process, so that signals reach it. The announcer is no child
# of the server's, and ends when the server is up or gone.
exec 9> >(announce_when_ready <&0 &)
wait $!
exec "$repo/scripts/run.sh" python -m sglang.launch_server "${defaults[@]}" "${flags[@]}"
