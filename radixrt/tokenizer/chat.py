"""A conversation rendered by the model's own chat template."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

import msgspec
from jinja2 import Template, TemplateError, TemplateSyntaxError, meta

from radixrt import dialects
from radixrt.errors import InvalidRequest
from radixrt.messages import RESERVED_VARIABLES, ChatPrompt
from radixrt.tokenizer.explain import as_plain_turn, explain_tools
from radixrt.tokenizer.sandbox import MAX_CHARS, JsonObject, Sandbox, TemplateLimit
from radixrt.tokenizer.shield import Shield, choose_marks, strings_in
from radixrt.tokenizer.tools import canonical_tool

log = logging.getLogger(__name__)

ROLES = ("system", "developer", "user", "assistant", "tool")
_MAX_WORDS = 500
"""Characters of a template's own error message that are passed on."""


class ChatTemplate:
    """A chat template, compiled once. `source` None: the model has none, and every rendering is refused.

    A template that does not compile costs completions nothing: it is an InvalidRequest of each chat.
    """

    def __init__(
        self,
        source: str | None,
        shield: Shield,
        *,
        bos_token: str | None = None,
        eos_token: str | None = None,
        clock: Callable[[], datetime] = datetime.now,
    ) -> None:
        self._shield = shield
        self._source = source or ""
        self._special = {
            name: text for name, text in (("bos_token", bos_token), ("eos_token", eos_token)) if text is not None
        }
        self._sandbox = Sandbox(clock)
        self._template: Template | None = None
        self._fault = (
            "this model has no chat template: start with --chat-template FILE to give it one, or use completions"
        )
        self._variables: set[str] = set()
        if source is not None:
            try:
                self._variables = meta.find_undeclared_variables(self._sandbox.parse(source))
                self._template = self._sandbox.from_string(source)
            except TemplateSyntaxError as error:
                self._fault = f"the chat template does not compile (line {error.lineno}): {error.message}"
                log.warning("%s", self._fault)

    @property
    def exists(self) -> bool:
        return self._template is not None

    @property
    def fault(self) -> str | None:
        """Why there is nothing to render with, or None."""
        return self._fault if self._template is None else None

    @property
    def knows_tools(self) -> bool:
        """Whether the template itself shows tools to the model."""
        return "tools" in self._variables

    @property
    def dialect(self) -> str | None:
        """How the model writes calls (a name in `radixrt.dialects`); None where that is not known."""
        return dialects.detect(self._source, knows_tools=self.knows_tools) if self.exists else None

    @property
    def thinking(self) -> dialects.Marks | None:
        """What stands around the model's thoughts; None for a model that shows none."""
        return dialects.thinking_marks(self._source)

    def ids(self, prompt: ChatPrompt) -> tuple[list[int], str]:
        """Token ids and text of what `prompt` asks for: the whole conversation, or what follows `prompt.after`.

        Raises InvalidRequest for what the template cannot render, and with code `not_incremental` where the text up to
        `after` is not the beginning of the whole text.
        """
        try:
            return self._ids(prompt)
        except RecursionError as error:
            raise InvalidRequest("messages, tools or template_kwargs nest too deeply", param="messages") from error

    def _ids(self, prompt: ChatPrompt) -> tuple[list[int], str]:
        self._check(prompt)
        messages = [msgspec.to_builtins(message) for message in prompt.messages]
        tools = [canonical_tool(tool) for tool in prompt.tools] if prompt.tools else None
        after = prompt.after
        if "tool_calls" not in self._source:
            messages = [as_plain_turn(message) for message in messages]
        if tools and not self.knows_tools:
            explained = explain_tools(messages, tools, in_system=self._takes_system)
            after += (len(explained) - len(messages)) if after else 0
            messages, tools = explained, None
        given = (messages, tools, prompt.template_kwargs)
        mark, end = choose_marks([*strings_in(given), self._source], 2)
        plain = [self._message(message, mark) for message in messages]
        variables = {
            **self._special,
            **self._shield.guard_all(prompt.template_kwargs, mark),
            "tools": self._shield.guard_all(tools, mark),
        }
        whole = self._render(plain, prompt.continue_final_message, prompt.add_generation_prompt, variables, end)
        whole += prompt.opening
        if after:
            begin = self._render(plain[:after], prompt.after_open, False, variables, end)
            if not whole.startswith(begin):
                raise InvalidRequest(
                    "the chat template does not write this conversation as a continuation of its first "
                    f"{prompt.after} messages: send the whole conversation instead",
                    param="messages",
                    code="not_incremental",
                )
            whole = whole[len(begin) :]
        return self._shield.encode(whole, mark)

    @cached_property
    def _takes_system(self) -> bool:
        """Whether the template renders a system message; some raise an error at one."""
        user = {"role": "user", "content": "a"}
        try:
            self._run([{"role": "system", "content": "b"}, user], True, self._special)
        except InvalidRequest:
            try:
                self._run([user], True, self._special)
            except InvalidRequest:
                return True  # it refuses something else
            return False
        return True

    def _check(self, prompt: ChatPrompt) -> None:
        if self._template is None:
            raise InvalidRequest(self._fault, param="messages", code="no_chat_template")
        if not prompt.messages:
            raise InvalidRequest("messages must not be empty", param="messages")
        for i, message in enumerate(prompt.messages):
            if message.role not in ROLES:
                raise InvalidRequest(
                    f"messages[{i}].role must be one of {', '.join(ROLES)}, but is {message.role[:40]!r}",
                    param=f"messages[{i}].role",
                )
        if prompt.continue_final_message and prompt.add_generation_prompt:
            raise InvalidRequest(
                "continue_final_message and add_generation_prompt exclude each other: set one of them to false",
                param="continue_final_message",
            )
        if prompt.opening and not prompt.add_generation_prompt:
            raise InvalidRequest("opening needs add_generation_prompt", param="opening")
        if not 0 <= prompt.after <= len(prompt.messages):
            raise InvalidRequest(f"after must be between 0 and {len(prompt.messages)}", param="after")
        for name in prompt.template_kwargs:
            if name in RESERVED_VARIABLES:
                raise InvalidRequest(f"{name!r} is not for template_kwargs", param="template_kwargs")

    def _message(self, message: dict[str, Any], mark: str) -> dict[str, Any]:
        """One message as the template sees it: developer is system, and arguments of tool calls are objects."""
        role = "system" if message["role"] == "developer" else message["role"]
        content = self._shield.guard(message.get("content") or "", mark, ends=True)
        rest = {key: value for key, value in message.items() if key not in ("role", "content") and value is not None}
        calls = rest.pop("tool_calls", None)
        out = {"role": role, "content": content, **self._shield.guard_all(rest, mark)}
        return out if calls is None else {**out, "tool_calls": [self._tool_call(call, mark) for call in calls]}

    def _tool_call(self, call: dict[str, Any], mark: str) -> dict[str, Any]:
        """A call with its arguments as an object that is written as the client wrote it, so that what a model
        generated comes out of the template as it went in."""
        function, guard = call.get("function"), self._shield.guard_all
        # OpenAI's clients send arguments as JSON text; templates write objects, unless they say that they take text.
        guarded: dict[str, Any] = guard(call, mark)
        if not isinstance(function, Mapping) or "arguments is string" in self._source:
            return guarded
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            text = arguments.strip() or "{}"
            try:
                value = json.loads(text)
            except (ValueError, RecursionError):
                return guarded
            if not isinstance(value, dict):
                return guarded
            arguments = JsonObject(guard(value, mark), guard(text, mark))
        else:
            arguments = guard(arguments if arguments is not None else {}, mark)
        return {**guarded, "function": {**guarded["function"], "arguments": arguments}}

    def _render(
        self, messages: Sequence[dict[str, Any]], open_end: bool, prompt_next: bool, variables: dict[str, Any], end: str
    ) -> str:
        if not open_end:
            return self._run(messages, prompt_next, variables)
        # As transformers does: mark the end of the last message's text, and cut there. The space behind the mark shows
        # whether the template trims its messages; then the text that it leaves open is trimmed too.
        last = messages[-1]["content"]
        marked = [*messages[:-1], {**messages[-1], "content": f"{last}{end} "}]
        text = self._run(marked, False, variables)
        place = text.rfind(end)
        if place < 0 or last.strip() not in text:
            raise InvalidRequest(
                "the chat template does not write the last message as it is, so it cannot be continued",
                param="continue_final_message",
            )
        return text[:place] if text.startswith(f"{end} ", place) else text[:place].rstrip()

    def _run(self, messages: Sequence[dict[str, Any]], add_generation_prompt: bool, variables: dict[str, Any]) -> str:
        if self._template is None:
            raise InvalidRequest(self._fault, param="messages")
        self._sandbox.start()
        parts: list[str] = []
        length = 0
        try:
            for part in self._template.generate(
                **{**variables, "messages": list(messages), "add_generation_prompt": add_generation_prompt}
            ):
                length += len(part)
                if length > MAX_CHARS:
                    raise TemplateLimit("the chat template writes too long a text")
                parts.append(part)
        except TemplateLimit as error:
            raise InvalidRequest(str(error), param="messages") from error
        except TemplateError as error:
            words = _words(error)
            raise InvalidRequest(f"the chat template refused the messages: {words}", param="messages") from error
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            raise InvalidRequest(
                f"the chat template failed on these messages: {_words(error)}", param="messages"
            ) from error
        except MemoryError as error:
            raise InvalidRequest("the chat template builds too long a text", param="messages") from error
        return "".join(parts)


def _words(error: Exception) -> str:
    """The error's own words, short, and without memory addresses."""
    words = re.sub(r"\bat 0x[0-9a-fA-F]+", "", str(error))[:_MAX_WORDS]
    return words.encode("utf-8", "replace").decode()  # JSON arguments may hold lone surrogates
