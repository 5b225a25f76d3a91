"""`OpenAI`: programs over any service that speaks OpenAI's API, without token ids."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal

from radixrt.errors import (
    Aborted,
    InvalidRequest,
    NotFound,
    Overloaded,
    RadixrtError,
    Unauthorized,
)
from radixrt.http_failures import http_failures
from radixrt.lang.capabilities import PLAIN, chosen
from radixrt.results import Choice, FinishReason, Generation, TokenLogprob, TopLogprob, Usage

if TYPE_CHECKING:
    import httpx

_BY_STATUS: dict[int, type[RadixrtError]] = {
    400: InvalidRequest, 401: Unauthorized, 403: Unauthorized, 404: NotFound, 408: Aborted, 422: InvalidRequest,
    429: Overloaded, 503: Overloaded,
}  # fmt: skip
_REASONS: dict[str, FinishReason] = {"stop": "stop", "length": "length", "tool_calls": "stop"}


class OpenAI:
    """A back end for programs (not a `radixrt.Backend`: it has no token ids).

    Args:
        base_url: up to and including /v1.
        model: name that goes with every request.
        capabilities: what the service can do (`capabilities.py` has the table); the default is OpenAI's own API.
        select: None: a select raises, for it cannot be exact. "ask": it is answered by a request whose answer is held
            to the choices by json_schema, at temperature 0; its meta then has no scores.
        timeout: seconds without a byte from the service before a request fails.

    One object may be used by any number of runs at once.
    """

    def __init__(
        self,
        *,
        base_url: str,
        model: str,
        api_key: str | None = None,
        capabilities: Iterable[str] = PLAIN,
        select: Literal["ask"] | None = None,
        timeout: float = 600.0,
    ) -> None:
        self.capabilities = chosen(capabilities)
        if select not in (None, "ask"):
            raise InvalidRequest(f'select must be None or "ask", but is {select!r}', param="select")
        self.select = select
        self._model = model
        self._base_url = base_url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key is not None else {}
        self._timeout = timeout

    async def chat(
        self, messages: list[dict[str, Any]], fields: dict[str, Any], tell: Callable[[str], None] | None
    ) -> Generation:
        """One chat completion; with `tell` the first choice's text is told as it comes."""
        return await self._ask("/chat/completions", {"messages": messages, **fields}, tell)

    async def chat_with_tools(
        self, messages: list[dict[str, Any]], fields: dict[str, Any]
    ) -> tuple[Generation, list[dict[str, Any]]]:
        """One chat completion, and the calls of its first choice as the service wrote them."""
        calls: list[dict[str, Any]] = []
        generation = await self._ask("/chat/completions", {"messages": messages, **fields}, None, calls)
        return generation, calls

    async def complete(self, prompt: str, fields: dict[str, Any], tell: Callable[[str], None] | None) -> Generation:
        """One completion of plain text."""
        return await self._ask("/completions", {"prompt": prompt, **fields}, tell)

    async def _ask(
        self,
        path: str,
        body: dict[str, Any],
        tell: Callable[[str], None] | None,
        calls: list[dict[str, Any]] | None = None,
    ) -> Generation:
        """`calls`: where the calls of a whole answer's first choice are put."""
        import httpx

        body = {"model": self._model, **body}
        limits = httpx.Timeout(self._timeout, connect=10.0)
        with http_failures(self._base_url, "service"):
            # A client of its own for each request: programs' loop may end before a shared one could be closed.
            async with httpx.AsyncClient(headers=self._headers, timeout=limits) as client:
                url = self._base_url + path
                if tell is None:
                    answer = _checked(await client.post(url, json=body))
                    generation = _generation(answer)
                    if calls is not None:
                        calls += answer["choices"][0].get("message", {}).get("tool_calls") or []
                    return generation
                body |= {"stream": True, "stream_options": {"include_usage": True}}
                async with client.stream("POST", url, json=body) as response:
                    if response.status_code != 200:
                        await response.aread()
                        _checked(response)
                    return await _streamed(_events(response), tell)


def _checked(response: httpx.Response) -> dict[str, Any]:
    try:
        answer = response.json()
    except ValueError:
        answer = None
    if response.status_code == 200 and isinstance(answer, dict):
        return answer
    error = answer.get("error") if isinstance(answer, dict) else None
    error = error if isinstance(error, dict) else {"message": response.text[:200]}
    kind = _BY_STATUS.get(response.status_code, RadixrtError)
    words = f"the service answered {response.status_code}: {error.get('message')}"
    raise kind(words, param=error.get("param"), code=error.get("code"))


async def _events(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in response.aiter_lines():
        data = line.removeprefix("data:").strip()
        if not line.startswith("data:") or data == "[DONE]":
            continue
        event = json.loads(data)
        if "error" in event:
            raise RadixrtError(f"the service failed: {event['error'].get('message')}")
        yield event


async def _streamed(events: AsyncIterator[dict[str, Any]], tell: Callable[[str], None]) -> Generation:
    """The same as a whole answer, put together from its pieces."""
    whole: dict[int, dict[str, Any]] = {}
    usage: dict[str, Any] = {}
    async for event in events:
        usage = event.get("usage") or usage
        for piece in event.get("choices", []):
            choice = whole.setdefault(piece["index"], {"index": piece["index"], "text": "", "finish_reason": None})
            text = (piece["delta"].get("content") if "delta" in piece else piece.get("text")) or ""
            choice["text"] += text
            choice["finish_reason"] = piece.get("finish_reason") or choice["finish_reason"]
            if content := (piece.get("logprobs") or {}).get("content"):
                choice.setdefault("logprobs", {"content": []})["content"].extend(content)
            if piece["index"] == 0:
                tell(text)
    if not whole or any(choice["finish_reason"] is None for choice in whole.values()):
        raise Aborted("the service ended the stream before the text was finished")
    return _generation({"choices": [whole[index] for index in sorted(whole)], "usage": usage})


def _generation(answer: dict[str, Any]) -> Generation:
    choices = []
    for choice in answer.get("choices", []):
        message = choice.get("message")
        if message is not None and message.get("refusal"):
            raise RadixrtError(f"the model refused: {message['refusal']}", code="refusal")
        reason = _REASONS.get(choice.get("finish_reason"))
        if reason is None:
            raise Aborted(f"the service ended the text with {choice.get('finish_reason')!r}")
        text = choice.get("text") if message is None else message.get("content")
        content = (choice.get("logprobs") or {}).get("content")
        choices.append(
            Choice(
                index=choice["index"],
                text=text or "",
                token_ids=(),
                finish_reason=reason,
                logprobs=tuple(map(_logprob, content)) if content else None,
            )
        )
    if not choices:
        raise RadixrtError("the service's answer holds no choice", code="bad_answer")
    usage = answer.get("usage") or {}
    counts = Usage(
        prompt_tokens=usage.get("prompt_tokens", 0),
        completion_tokens=usage.get("completion_tokens", 0),
        cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0,
    )
    return Generation(choices=tuple(choices), usage=counts)


def _logprob(entry: dict[str, Any]) -> TokenLogprob:
    """Token ids are not told: -1."""
    top = tuple(
        TopLogprob(token_id=-1, token=t["token"], bytes=bytes(t.get("bytes") or ()), logprob=t["logprob"])
        for t in entry.get("top_logprobs", [])
    )
    return TokenLogprob(
        token_id=-1, token=entry["token"], bytes=bytes(entry.get("bytes") or ()), logprob=entry["logprob"], top=top
    )
