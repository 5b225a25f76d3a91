"""What stands before the next token: token ids, the constant text that is not tokenized yet, and the turns.

One implementation for both places that grow a program's text: the tokenizer process, for programs that run inside the
engine, and a program's branch (`radixrt.lang`), for what is done request by request. So both give the same ids.

Everything is tokenized once, where it enters, and what was generated keeps the ids it was generated with. Text is
kept back until something must follow it (a gen, a select), so that pieces written one after another are tokenized
together: "a" + "b" gives the ids of "ab".

A conversation grows by what the chat template adds. `turns` are the finished messages; the first `rendered` of them
are in `ids`, and of the last of these the end marker is missing while `unclosed`:

    ids:   [ turn 1 ][ turn 2 ][ turn 3 without its end         turns[:rendered], unclosed
    next:                                              marker ][ turn 4 ][ <start> assistant

An assistant turn that is only constant text is rendered whole, as chat completions do. One that the model writes is
opened with the generation prompt, and its parts are appended as they come. A template whose text for a longer
conversation does not begin with its text for the shorter one makes the tokenizer refuse (`not_incremental`): then the
whole conversation is rendered once more, generated text included, and the ids are those of chat completions. So it is
too after each turn with calls that its text does not spell, after each turn of a template whose generation prompt
writes text ("<think>") that it does not write into finished turns, and where a turn shows other tools than those
before it.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, Self, TypeAlias, TypeVar

from radixrt.backend import Tokens
from radixrt.called import CallText, read_calls
from radixrt.errors import InvalidRequest, RadixrtError
from radixrt.messages import ChatMessage, ChatPrompt, Prompt, TextPrompt, TokensPrompt
from radixrt.prompts import token_array

Role: TypeAlias = Literal["system", "user", "assistant", "tool"]
Answer = TypeVar("Answer")


class Tokenizing(Protocol):
    """What a conversation needs of a backend: text to ids and back."""

    async def atokenize(self, prompt: Prompt) -> Tokens: ...

    async def adetokenize(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str: ...


@dataclass(frozen=True, slots=True)
class Turn:
    """The turn under way. `opened`: its start marker and all of `content` but the pending text are in the ids."""

    role: Role
    name: str | None = None
    tool_call_id: str | None = None
    content: str = ""
    opened: bool = False
    tool_calls: tuple[dict[str, Any], ...] = ()
    """Those that `content` does not spell: a service's, and those written with control tokens."""

    def message(self) -> ChatMessage:
        return ChatMessage(
            role=self.role,
            content=self.content,
            name=self.name,
            tool_calls=list(self.tool_calls) or None,
            tool_call_id=self.tool_call_id,
        )


@dataclass
class Conversation:
    """Owned by one branch and changed by it alone; `copy` makes the start of another branch."""

    ids: list[int] = field(default_factory=list)
    text: str = ""
    pending: str = ""
    turns: list[ChatMessage] = field(default_factory=list)
    rendered: int = 0
    unclosed: bool = False
    prompt_adds_text: bool | None = None
    """Of the template; None: not known yet."""
    prompted: bool = False
    """The last rendered turn was begun by the generation prompt, since when nothing was rendered."""
    turn: Turn | None = None
    tools: list[dict[str, Any]] = field(default_factory=list)
    """What the template shows the model as its tools, from the first turn on."""
    stale: bool = False
    """The ids were rendered with other tools."""

    def copy(self) -> Self:
        return replace(self, ids=list(self.ids), turns=list(self.turns))

    def messages(self) -> list[ChatMessage]:
        """All turns, with the one under way last."""
        return [*self.turns, self.turn.message()] if self.turn else list(self.turns)

    # --- writing -----------------------------------------------------------------------------------------------------

    def add_text(self, text: str) -> None:
        """Constant text: pending, until something must follow it."""
        if self.turn is not None:
            self.turn = replace(self.turn, content=self.turn.content + text)
            if not self.turn.opened:
                return
        self.pending += text

    def show_tools(self, tools: Sequence[dict[str, Any]]) -> None:
        """From here on the model knows these tools. Templates put them in front of everything: where others were shown,
        the conversation is rendered anew. InvalidRequest outside of an assistant's turn, and in one that has begun."""
        if self.turn is None or self.turn.role != "assistant":
            raise InvalidRequest("tools need an assistant's turn: put the gen into assistant(...)", param="tools")
        if list(tools) == self.tools:
            return
        if self.turn.opened:
            raise InvalidRequest("tools must come with the first gen or select of a turn", param="tools")
        self.tools, self.stale = list(tools), self.rendered > 0

    def open_turn(self, turn: Turn) -> None:
        self.turn = turn

    def close_turn(self) -> None:
        if self.turn is None:
            return
        self.turns.append(self.turn.message())
        if self.turn.opened:
            self.rendered, self.unclosed = len(self.turns), True
            self.prompted = self.turn.role == "assistant" and self.rendered > 1
        self.turn = None

    def wrote_text(self, text: str) -> None:
        """Constant text whose ids are in `ids` (or about to be): it joins the visible text."""
        self.text += text

    def wrote_anew(self, text: str, new: str) -> None:
        """The text so far is replaced; `new` is what readers of the growing text have not seen of it."""
        self.text = text

    def append_generated(self, ids: Sequence[int], text: str, calls: CallText | None = None) -> None:
        """Ids as the model gave them. Their text is not joined to the visible text here."""
        self.ids.extend(ids)
        if self.turn is not None and calls is not None and calls.structured:
            text, found = read_calls(calls, text)
            self.append_calls([call.as_message() for call in found])
        if self.turn is not None:
            self.turn = replace(self.turn, content=self.turn.content + text)

    def append_calls(self, calls: Sequence[dict[str, Any]]) -> None:
        """Calls beside the turn's text."""
        if self.turn is not None:
            self.turn = replace(self.turn, tool_calls=(*self.turn.tool_calls, *calls))

    # --- tokenizing --------------------------------------------------------------------------------------------------

    async def flush(self, backend: Tokenizing) -> Tokens | None:
        """After this the ids hold everything that was written, and the model can go on from them.

        The tokens of the constant text that they now end with; None where they end with something else.
        """
        text = await self.open(backend)
        tokens = None
        if text or not self.ids:
            tokens = await tokenize_text(backend, text, first=not self.ids)
            self.ids.extend(tokens.ids)
            if text:
                self.wrote_text(text)
        self.pending = ""
        return tokens if text else None

    async def open(self, backend: Tokenizing) -> str:
        """The same, but for the pending text, which is returned: the ids hold all that comes before it."""
        turn = self.turn
        if turn is None:
            if len(self.turns) > self.rendered or self.unclosed:
                await self._append_turns(backend, self.turns, add_generation_prompt=False)
        elif not turn.opened and turn.role == "assistant":
            if self.turns:
                await self._append_turns(backend, self.turns, add_generation_prompt=True)
            else:  # there is nothing to answer: the turn is begun as an empty one, left open
                empty = [replace(turn, content="").message()]
                await self._append_turns(backend, empty, add_generation_prompt=False, continue_final_message=True)
            self.turn = replace(turn, opened=True)
            self.pending = turn.content
        elif not turn.opened:
            messages = [*self.turns, turn.message()]
            await self._append_turns(backend, messages, add_generation_prompt=False, continue_final_message=True)
            self.turn = replace(turn, opened=True)
        return self.pending

    async def _append_turns(
        self,
        backend: Tokenizing,
        messages: list[ChatMessage],
        *,
        add_generation_prompt: bool,
        continue_final_message: bool = False,
    ) -> None:
        prompt = ChatPrompt(
            messages=messages,
            tools=self.tools or None,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            after=self.rendered,
            after_open=self.unclosed,
        )
        if self.prompted and self.prompt_adds_text is None:
            self.prompt_adds_text = await _adds_text(backend, self.turns[: self.rendered - 1])
        try:
            # A turn with calls cannot be left open behind them: the template is asked for the end of its text.
            called = self.unclosed and bool(self.turns[self.rendered - 1].tool_calls)
            anew = self.stale or called or (self.prompted and self.prompt_adds_text)
            tokens = None if anew else await self._turn_tokens(backend, prompt)
        except RadixrtError as error:
            # Some templates cannot leave a message open, so nothing can be said to follow it.
            if error.code != "not_incremental" and not (self.unclosed and error.param == "continue_final_message"):
                raise
            tokens = None
        if tokens is None:
            whole = ChatPrompt(
                messages=messages,
                tools=self.tools or None,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
            )
            tokens = await backend.atokenize(whole)
            # The text so far is replaced: readers of the growing text are told only of the turns that are new.
            self.ids, self.pending = list(tokens.ids), ""
            self.wrote_anew(tokens.text, "".join(message.content for message in messages[self.rendered :]))
        self.rendered, self.unclosed, self.prompted, self.stale = len(self.turns), False, False, False

    async def _turn_tokens(self, backend: Tokenizing, prompt: ChatPrompt) -> Tokens:
        """Appends what the pending text and the turns become; nothing is changed when the backend refuses."""
        tokens = await backend.atokenize(prompt)
        if text := self.pending:
            before = await tokenize_text(backend, text, first=False)
            self.ids.extend(before.ids)
            self.wrote_text(text)
            self.pending = ""
        self.ids.extend(tokens.ids)
        if tokens.text:
            self.wrote_text(tokens.text)
        return tokens


async def _adds_text(backend: Tokenizing, turns: list[ChatMessage]) -> bool:
    """Whether the generation prompt is more than the beginning of an assistant's turn."""
    empty = ChatMessage(role="assistant", content="")
    prompt = ChatPrompt(messages=turns, add_generation_prompt=True, after=len(turns))
    begun = ChatPrompt(
        messages=[*turns, empty], add_generation_prompt=False, continue_final_message=True, after=len(turns)
    )
    try:
        asked, opened = await backend.atokenize(prompt), await backend.atokenize(begun)
    except InvalidRequest:  # this template does not continue itself: everything is rendered anew in any case
        return False
    return asked.text.rstrip() != opened.text.rstrip()


async def tokenize_text(backend: Tokenizing, text: str, *, first: bool) -> Tokens:
    """Text at the beginning gets the model's BOS token where the model has one; text further on never does."""
    if not text and not first:
        raise InvalidRequest("there is no text to tokenize")
    return await backend.atokenize(TextPrompt(text=text, add_special_tokens=first))


async def cut_ids(backend: Tokenizing, ids: Sequence[int], text: str) -> list[int]:
    """The ids of a generation that a stop string ended, without those of the stop string.

    `text` is the text that was kept. Where the stop string begins inside a token, the part of that token that was
    kept is tokenized by itself.
    """
    if not ids:
        return []
    tokens = await backend.atokenize(TokensPrompt(ids=token_array(ids)))
    full = await backend.adetokenize(ids, skip_special_tokens=True)
    kept, dropped = list(ids), len(full.encode()) - len(text.encode())
    rest = b""
    while kept and (dropped > 0 or not _whole(rest)):
        kept.pop()
        piece = tokens.pieces[len(kept)]
        if dropped > 0:
            rest, dropped = piece[: max(0, len(piece) - dropped)], dropped - len(piece)
        else:
            rest = piece + rest
    if rest and _whole(rest):
        kept.extend((await tokenize_text(backend, rest.decode(), first=False)).ids)
    return kept


def _whole(piece: bytes) -> bool:
    """Whether bytes are whole characters."""
    try:
        piece.decode()
    except UnicodeDecodeError:
        return False
    return True


def at_once(coroutine: Coroutine[Any, Any, Answer]) -> Answer:
    """The result of a coroutine that never waits (its backend answers in the same process)."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        answer: Answer = done.value
        return answer
    coroutine.close()
    raise RuntimeError("a coroutine that was to be done at once waits for something")
