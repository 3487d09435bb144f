#!/usr/bin/env bash
# scripts/make_pair/smollm2.sh WORK [STEP...]: the drafter of SmolLM2-135M-Instruct, from nothing.
#
# Steps: model prompts init generate capture fit train export eval ship; all in order without any.
# Each goes on where it was interrupted; ship copies the result into the package.
#
#   THREADS=1       of every process
#   PROMPTS=12000   chats to answer, each greedily and at temperature 0.7
#   STEPS=1300      of training
#   HELD_OUT=48     chats to evaluate on
set -euo pipefail

work=${1:?usage: scripts/make_pair/smollm2.sh WORK [STEP...]}
shift
repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
steps=("$@")
((${#steps[@]} > 0)) || steps=(model prompts init generate capture fit train export eval ship)
export OMP_NUM_THREADS=${THREADS:-1}
port=${PORT:-30517}
memory=(--dtype float32 --max-total-tokens 32768 --mem-fraction-static 0.2)

run() { "$repo/scripts/run.sh" "$@"; }
drafter() { run sglang-ddtree drafter "$1" --work "$work/run" "${@:2}"; }

answers() { (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; }

# Serves the target while a command runs. The server is asked until it answers or is gone.
with_server() {
    if answers; then
        echo "port $port is in use: name a free one in PORT" >&2
        exit 1
    fi
    "$repo/scripts/run.sh" python -m sglang.launch_server --model-path "$work/target" --host 127.0.0.1 \
        --port "$port" "${memory[@]}" >"$work/server.log" 2>&1 &
    local server=$!
    trap 'kill '"$server"' 2>/dev/null || true' EXIT
    until answers; do
        kill -0 "$server" 2>/dev/null || { tail -n 20 "$work/server.log" >&2 && exit 1; }
        sleep 1
    done
    "$@"
    kill "$server"
    wait "$server" || true
    trap - EXIT
}

mkdir -p "$work"
for step in "${steps[@]}"; do
    echo "== $step"
    case $step in
        model) run python -m sglang_ddtree.drafter.smollm2 "$work/target" ;;
        prompts)
            run python "$repo/scripts/make_pair/chat_prompts.py" "$work/prompts" \
                --count "${PROMPTS:-12000}"
            ;;
        init)
            [[ -e $work/run/init/config.json ]] ||
                drafter init --target "$work/target" --layers 3 --block 8 --target-layers 1,15,27
            ;;
        generate)
            with_server drafter generate --server "http://127.0.0.1:$port" --concurrency ${CONCURRENCY:-48} \
                --prompts "$work/prompts/train.jsonl" --temperatures 0,0.7 --max-tokens 256
            ;;
        capture) drafter capture --top 16 -- "${memory[@]}" ;;
        fit) [[ -e $work/run/train ]] || drafter fit ;;
        train)
            drafter train --steps "${STEPS:-1300}" --batch 4 --anchors 32 --lr 1e-3 --gamma 4 \
                --warmup 60 --distil 0.8 --draft-vocab 6144 --save-every 50 --log-every 25
            ;;
        export) drafter export ;;
        eval)
            with_server drafter eval --server "http://127.0.0.1:$port" --limit "${HELD_OUT:-48}" \
                --concurrency 32 --prompts "$work/prompts/held-out.jsonl" -- "${memory[@]}"
            ;;
        ship) run python "$repo/scripts/make_pair/ship_smollm2.py" "$work" ;;
        *) echo "no step $step" >&2 && exit 2 ;;
    esac
done
