"""Does any request end or hang a tree server?

    scripts/run.sh python benchmark/fuzz.py --requests 3000

Requests drawn from the server's own ``/openapi.json``, every endpoint in turn, while good requests
decode beside them: some of any shape that the schema allows, most of them good ones with a field or
two replaced. Exits with 1 where the server ends, a good answer changes, or a request has no answer
in time; its last line names the request. ``--seed`` repeats a run.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import requests
from common.arguments import parser
from common.server import Server, tree_flags

TIMEOUT_S = 60
FLAGS = ("--context-length", "500", "--random-seed", "7", "--enable-deterministic-inference")
# What SGLang checks of its KV slots; it stops on a leak.
STRICT = {
    "OMP_NUM_THREADS": "1",
    "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1",
    "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_IDLE": "1",
}
# Endpoints whose purpose is to change or stop what is served, for everybody.
BY_DESIGN = {
    "/pause_generation": "stops all requests until /continue_generation",
    "/continue_generation": "its counterpart",
    "/release_memory_occupation": "gives the weights and the KV pool back",
    "/resume_memory_occupation": "its counterpart",
    "/abort_request": "ends requests of others, all of them with abort_all",
    "/slow_down": "makes every step sleep",
    "/pd_role_switch": "changes what the server is",
    "/begin_weight_update": "stops all requests until /end_weight_update",
    "/end_weight_update": "its counterpart",
    "/weights_checker": "its action reset_tensors overwrites the weights",
    "/update_weights_from_disk": "changes the answers",
    "/update_weights_from_tensor": "unpickles what it is sent",
    "/update_weights_from_distributed": "waits for a group of processes",
    "/update_weights_from_ipc": "unpickles what it is sent",
    "/init_weights_update_group": "waits for a group of processes",
    "/destroy_weights_update_group": "its counterpart",
    "/init_weights_send_group_for_remote_instance": "waits for another server",
    "/send_weights_to_remote_instance": "waits for another server",
    "/load_lora_adapter_from_tensors": "unpickles what it is sent",
    "/start_profile": "slows every step",
    "/set_internal_state": "changes the server's settings",
}
MESSAGES = [{"role": "user", "content": "Count to ten."}]
GOOD: dict[str, dict[str, Any]] = {
    "/generate": {"text": "x = 1", "sampling_params": {"max_new_tokens": 4}},
    "/v1/completions": {"model": "tiny", "prompt": "x = 1", "max_tokens": 4},
    "/v1/chat/completions": {"model": "tiny", "messages": MESSAGES, "max_tokens": 4},
    "/invocations": {"model": "tiny", "messages": MESSAGES, "max_tokens": 4},
    "/v1/messages": {"model": "tiny", "messages": MESSAGES, "max_tokens": 4},
    "/v1/responses": {"model": "tiny", "input": "x = 1", "max_output_tokens": 4},
    "/api/chat": {"model": "tiny", "messages": MESSAGES, "options": {"num_predict": 4}},
    "/api/generate": {"model": "tiny", "prompt": "x = 1", "options": {"num_predict": 4}},
    "/vertex_generate": {"instances": [{"text": "x = 1"}], "parameters": {}},
}
NASTY: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 7, 2**31, 2**40, -(2**31), 2**63 - 1, -(2**63)),
    *(0.5, -0.5, 1e-30, 1e30, "", " ", "x", "\x00", "(", "(a+)+$", "é" * 40, "0", "none"),
    *([], [0], [-1], [2**40], [2**63 - 1], [[0]], [[]], [""], ["x", ""], [None], [0.5], [[0.5]]),
    *({}, {"x": 1}, {"id": "x"}, {"type": "x"}, [{}], [{"role": "user", "content": ""}]),
)


KINDS: dict[str | None, Any] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
}


def parse_args() -> argparse.Namespace:
    made = parser(str(__doc__).splitlines()[0])
    made.add_argument("--requests", type=int, default=3000)
    made.add_argument("--budget", type=int, default=15)
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--only", help="endpoints whose path has this in it")
    made.add_argument("--url", help="of a server that runs already")
    return made.parse_args()


class Operation:
    """One method of one path.

    Attributes:
        fields: the properties of its JSON body.
    """

    def __init__(self, method: str, path: str, described: dict[str, Any], whole: dict[str, Any]):
        self.method, self.path = method, path
        content = described.get("requestBody", {}).get("content", {})
        self.schema = content.get("application/json", {}).get("schema")
        self.query = [p["name"] for p in described.get("parameters", ()) if p["in"] == "query"]
        self.fields = sorted(_properties(self.schema or {}, whole))

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


def _properties(schema: dict[str, Any], whole: dict[str, Any]) -> set[str]:
    if reference := schema.get("$ref"):
        return _properties(whole["components"]["schemas"][reference.rpartition("/")[2]], whole)
    found = set(schema.get("properties", ()))
    for part in (*schema.get("anyOf", ()), *schema.get("allOf", ())):
        found |= _properties(part, whole)
    return found


def operations(whole: dict[str, Any], only: str | None) -> list[Operation]:
    found = [
        Operation(method.upper(), path, described, whole)
        for path, methods in whole["paths"].items()
        for method, described in methods.items()
        if path not in BY_DESIGN
    ]
    return [one for one in found if only is None or only in one.path]


def drawn(schema: dict[str, Any], whole: dict[str, Any], choose: random.Random, depth: int) -> Any:
    """A value that ``schema`` allows, or in one of eight cases one that it may not."""
    if choose.random() < 0.125 or depth == 0:
        return choose.choice(NASTY)
    if reference := schema.get("$ref"):
        target = whole["components"]["schemas"][reference.rpartition("/")[2]]
        return drawn(target, whole, choose, depth - 1)
    for key in ("anyOf", "oneOf", "allOf"):
        if key in schema:
            return drawn(choose.choice(schema[key]), whole, choose, depth)
    if "const" in schema or "enum" in schema:
        return choose.choice(schema.get("enum", [schema.get("const")]))
    kind = schema.get("type")
    if kind == "object":
        needed = schema.get("required", ())
        named = {
            name: drawn(value, whole, choose, depth - 1)
            for name, value in schema.get("properties", {}).items()
            if name in needed or choose.random() < 0.1
        }
        return named or choose.choice(({}, {"x": 1}))
    if kind == "array":
        items = schema.get("items", {})
        return [drawn(items, whole, choose, depth - 1) for _ in range(choose.randrange(3))]
    return choose.choice([value for value in NASTY if isinstance(value, KINDS.get(kind, object))])


def mutated(operation: Operation, choose: random.Random) -> Any:
    """A good body with a field or two replaced."""
    body = json.loads(json.dumps(GOOD.get(operation.path, {})))
    sampling = body.get("sampling_params")
    for _ in range(choose.choice((1, 1, 2, 3))):
        if sampling is not None and choose.random() < 0.5:
            body["sampling_params"] = sampling
            sampling[choose.choice(sampling_fields())] = choose.choice(NASTY)
        elif operation.fields:
            body[choose.choice(operation.fields)] = choose.choice(NASTY)
    if choose.random() < 0.2:
        body["stream"] = True
    return body


def sampling_fields() -> list[str]:
    import msgspec
    from sglang.srt.sampling.sampling_params import SamplingParams

    return [field.name for field in msgspec.structs.fields(SamplingParams)]


class Beside:
    """Good requests, one after the other, whose answers may not change."""

    def __init__(self, server: str) -> None:
        self.url, self.count, self.problem = server, 0, ""
        self._expected = self._answer()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _answer(self) -> list[int]:
        params = {"temperature": 0, "max_new_tokens": 24, "ignore_eos": True}
        body = {"text": "def add(a, b):", "sampling_params": params}
        answer = requests.post(f"{self.url}/generate", json=body, timeout=2 * TIMEOUT_S)
        answer.raise_for_status()
        return answer.json()["output_ids"]

    def _run(self) -> None:
        while not self._stop.is_set() and not self.problem:
            try:
                if self._answer() != self._expected:
                    self.problem = "a good request had another answer than before"
            except requests.RequestException as error:
                self.problem = f"a good request failed: {error}"
            self.count += 1

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(2 * TIMEOUT_S)


def send(url: str, operation: Operation, body: Any, choose: random.Random) -> int:
    """Status of one request; a stream is read to its end."""
    path = operation.path.replace("{", "").replace("}", "")
    query = {name: choose.choice(("-1", "x", "1")) for name in operation.query}
    answer = requests.request(
        operation.method, url + path, json=body, params=query, timeout=TIMEOUT_S
    )
    return answer.status_code


def bodies(operation: Operation, whole: dict[str, Any], seed: int) -> Iterator[Any]:
    """Endless: one draw from the schema for every three mutations."""
    choose = random.Random(f"{seed} {operation}")
    while True:
        if operation.schema is None:
            yield None
            continue
        yield drawn(operation.schema, whole, choose, 6)
        yield from (mutated(operation, choose) for _ in range(3))


def fuzz(url: str, args: argparse.Namespace) -> str:
    """Send the requests; the first problem, or an empty string."""
    whole = requests.get(f"{url}/openapi.json", timeout=TIMEOUT_S).json()
    found = operations(whole, args.only)
    # Generation has most of the fields.
    weights = [8 if operation.path in GOOD else 1 for operation in found]
    sources = {str(operation): bodies(operation, whole, args.seed) for operation in found}
    choose = random.Random(args.seed)
    beside = Beside(url)
    statuses: Counter[int] = Counter()
    errors: dict[str, str] = {}
    for _ in range(args.requests):
        operation = choose.choices(found, weights)[0]
        body = next(sources[str(operation)])
        sent = f"{operation} {json.dumps(body)[:2000]}"
        try:
            status = send(url, operation, body, choose)
        except requests.exceptions.InvalidJSONError:
            continue
        except requests.RequestException as error:
            return f"no answer: {sent}: {error}"
        statuses[status] += 1
        if status >= 500:
            errors.setdefault(str(operation), sent)
        if beside.problem:
            return f"{beside.problem}; the last request beside it: {sent}"
    beside.stop()
    for sent in errors.values():
        print(f"HTTP 500: {sent}")
    print(f"{len(found)} operations, statuses {dict(sorted(statuses.items()))}, ", end="")
    print(f"{beside.count} good requests beside them")
    return beside.problem


def main() -> int:
    args = parse_args()
    if args.url:
        problem = fuzz(args.url, args)
    else:
        flags = [*FLAGS, *tree_flags(args.pair, args.budget)]
        with Server(args.pair.target, flags, STRICT) as server:
            problem = fuzz(server.url, args)
            if problem:
                print(server.log()[-6000:])
    print(problem or "nothing ended or hung the server")
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main())
