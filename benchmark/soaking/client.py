"""Does what a call says, against one server."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp

from soaking.answer import Answer, Stream
from soaking.mix import Call

TIMEOUT_S = 300
# Of a weight update that came while requests were there, which only a pause and aborts let in.
# scheduler_components/weight_updater.py:flush_cache_after_weight_update@0.5.23
NOT_FLUSHED = b"the cache was not flushed because requests are still running or queued"


class Client:
    """Many clients in one: connections are kept, as long as the client is open.

    Args:
        url: of the server.
        connections: at most so many at a time.
    """

    def __init__(self, url: str, connections: int) -> None:
        self.url = url
        self._connections = connections
        self._pauses = asyncio.Lock()
        self.aborts = 0  # of everything in flight, so far
        self.sleep_s = 0.1  # of a pause

    async def __aenter__(self) -> Client:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._connections),
            timeout=aiohttp.ClientTimeout(total=TIMEOUT_S),
        )
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self._session.close()

    async def perform(self, call: Call) -> Answer:
        """The answer, whatever it is; what fails on the way is its ``error``."""
        answer = Answer()
        try:
            if call.kind == "session":
                await self._converse(call, answer)
            elif call.kind == "pause":
                await self._pause(call, answer)
            elif call.kind == "weights":
                await self._update_weights(call, answer)
            else:
                await self._ask_once_more(call, answer)
        except (aiohttp.ClientError, TimeoutError, ValueError, KeyError, TypeError) as error:
            answer.error = f"{type(error).__name__}: {error}"
        return answer

    async def post(self, path: str, body: Any = None) -> tuple[int, bytes]:
        """Status and body of one POST."""
        async with self._session.post(self.url + path, json=body) as response:
            return response.status, await response.read()

    async def get(self, path: str) -> Any:
        """The JSON of a GET."""
        async with self._session.get(self.url + path) as response:
            response.raise_for_status()
            return await response.json()

    async def _ask_once_more(self, call: Call, answer: Answer) -> None:
        """Ask, and again if the server closed a kept connection as the request was sent."""
        try:
            await self._ask(call, call.body, answer)
        except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError):
            if answer.status:
                raise
            await self._ask(call, call.body, answer)

    async def _ask(self, call: Call, body: Any, answer: Answer) -> None:
        if call.kind == "abort":
            body = {**body, "rid": f"soak-{call.number}-{id(answer):x}"}
        sent = {"data": body} if isinstance(body, str) else {"json": body}
        headers = {"Content-Type": "application/json"}
        url = self.url + call.path
        async with self._session.post(url, headers=headers, **sent) as response:
            answer.status = response.status
            if response.status != 200:
                answer.error = (await response.text())[:500]
            elif isinstance(body, dict) and body.get("stream"):
                await self._read_stream(call, body, response, answer)
            else:
                content = await response.read()
                if call.kind not in ("flush", "bad"):
                    answer.add_body(call.kind, content)

    async def _read_stream(
        self, call: Call, body: dict[str, Any], response: Any, answer: Answer
    ) -> None:
        stream = Stream(call.kind)
        while True:
            if stream.events == call.leave_after and not answer.left:
                answer.left = True
                if call.kind == "leave":
                    response.close()
                    return
                await self.post("/abort_request", {"rid": body["rid"]})
            line = await response.content.readline()
            if not line:
                break
            stream.feed(line)
        stream.finish(answer)

    async def _converse(self, call: Call, answer: Answer) -> None:
        """A session: each request goes on from the one before."""
        status, opened = await self.post("/open_session", {"capacity_of_str_len": 4000})
        answer.status = status
        if status != 200:
            answer.error = opened.decode()
            return
        name, before = json.loads(opened), None
        try:
            for turn in call.turns:
                body = {**turn, "session_params": {"id": name, "rid": before}}
                await self._ask(call, body, answer)
                if answer.error:
                    return
                before = answer.outputs[-1]["meta_info"]["id"]
        finally:
            await self.post("/close_session", {"session_id": name})

    async def _update_weights(self, call: Call, answer: Answer) -> None:
        """Outside of pauses SGLang lets answers end first, but does not wait for aborted ones."""
        async with self._pauses:
            content = NOT_FLUSHED
            while NOT_FLUSHED in content:
                answer.status, content = await self.post(call.path, call.body)
        if answer.status != 200:
            answer.error = content.decode()

    async def _pause(self, call: Call, answer: Answer) -> None:
        """Stop all work for a moment; requests come in meanwhile."""
        async with self._pauses:
            self.aborts += call.body["mode"] == "abort"
            try:
                answer.status, content = await self.post(call.path, call.body)
                await asyncio.sleep(self.sleep_s)
            finally:
                if not self._session.closed:  # as it is when SIGTERM ends all of this
                    status, _ = await self.post("/continue_generation", {})
            if answer.status != 200 or status != 200:
                answer.error = f"{content.decode()}; to go on: {status}"
