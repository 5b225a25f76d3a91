"""The conversation behind `radixrt chat`: its turns, its commands, and the loop that reads and prints."""

from __future__ import annotations

import sys
import time
from collections.abc import Generator
from typing import TYPE_CHECKING

from radixrt.errors import EngineDead, RadixrtError
from radixrt.messages import ChatMessage
from radixrt.results import Delta, Usage, computing

if TYPE_CHECKING:
    from radixrt.backend import Backend
    from radixrt.params import SamplingParams

HELP = """\
/help           this list
/system [TEXT]  show the system prompt, or set it and begin anew
/reset          forget the conversation, keep the system prompt
/quit           leave (Ctrl-D does the same); Ctrl-C stops an answer"""

_CONTROLS = {code: None for code in (*range(32), 127, *range(128, 160)) if chr(code) not in "\n\t"}


def printable(text: str) -> str:
    """`text` without control characters: what a model writes must not drive the terminal."""
    return text.translate(_CONTROLS)


class Conversation:
    """The turns so far. Each question sends all of them; the backend's prefix cache makes that cheap."""

    def __init__(self, backend: Backend, sampling: SamplingParams, system: str = "") -> None:
        self.backend = backend
        self.sampling = sampling
        self.reset(system)

    def reset(self, system: str) -> None:
        """Begin anew under `system` (no system message where it is empty)."""
        self.system = system
        self.messages = [ChatMessage(role="system", content=system)] if system else []

    def ask(self, question: str) -> Generator[Delta, None, None]:
        """Stream the answer to `question`. Closing the iterator stops the answer; what was said stays in the history.

        When the backend refuses the question, it is not part of the history.
        """
        self.messages.append(ChatMessage(role="user", content=question))
        said = ""
        stream = self.backend.stream(self.messages, self.sampling)
        try:
            for delta in stream:
                said += delta.text
                yield delta
        except RadixrtError:
            if not said:
                self.messages.pop()
            raise
        finally:
            close = getattr(stream, "close", None)
            if close is not None:
                close()
            if said:
                self.messages.append(ChatMessage(role="assistant", content=said))


def talk(conversation: Conversation) -> None:
    """Read questions from stdin and print answers to stdout until the input ends or /quit."""
    interactive = sys.stdin.isatty()
    if interactive:
        import readline  # noqa: F401 (gives input() a history and line editing)

        info = conversation.backend.info
        note(f"{info.name}: {computing(info)}; /help lists the commands")
    while True:
        try:
            line = input("> " if interactive else "").strip()
        except EOFError:
            break
        except KeyboardInterrupt:
            if not interactive:
                raise
            print()
            note("/quit or Ctrl-D leaves")
            continue
        if line in ("/quit", "/exit"):
            break
        if line.startswith("/"):
            obey(conversation, line)
        elif line:
            answer(conversation, line)
    if interactive:
        print()


def obey(conversation: Conversation, line: str) -> None:
    """Carry out a command line that begins with a slash."""
    command, _, rest = line.partition(" ")
    match command:
        case "/help":
            note(HELP)
        case "/reset":
            conversation.reset(conversation.system)
            note("the conversation is forgotten")
        case "/system" if rest.strip():
            conversation.reset(rest.strip())
            note("system prompt set; the conversation begins anew")
        case "/system":
            note(conversation.system or "no system prompt")
        case _:
            note(f"unknown command {command}; /help lists them")


def answer(conversation: Conversation, question: str) -> None:
    """Print the answer as it comes, then what it cost. Ctrl-C ends the answer only."""
    started = time.perf_counter()
    first: float | None = None
    last, ending = Delta(), ""
    stream = conversation.ask(question)
    try:
        for last in stream:
            if last.text and first is None:
                first = time.perf_counter()
            sys.stdout.write(printable(last.text))
            sys.stdout.flush()
        ending = "cut at the token limit" if last.finish_reason == "length" else ""
    except KeyboardInterrupt:
        ending = "stopped"
    except EngineDead:
        raise
    except RadixrtError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return
    finally:
        stream.close()
        if first is not None:
            print(flush=True)
    parts = cost(last.usage, time.perf_counter(), started, first) if last.usage else []
    if ending:
        parts.append(ending)
    if parts:
        note("; ".join(parts))


def cost(usage: Usage, now: float, started: float, first: float | None) -> list[str]:
    """An answer's numbers in words; times are `perf_counter` readings."""
    parts = [f"{usage.prompt_tokens} prompt tokens, {usage.cached_tokens} of them cached"]
    parts.append(f"{usage.completion_tokens} generated")
    if first is not None:
        parts.append(f"first after {first - started:.2f} s")
        if usage.completion_tokens > 1 and now > first:
            parts.append(f"{(usage.completion_tokens - 1) / (now - first):.0f} tokens/s")
    return parts


def note(text: str) -> None:
    """A remark of the program itself, dim on a terminal; on stderr, so that a pipe holds answers alone."""
    dim, plain = ("\x1b[2m", "\x1b[0m") if sys.stderr.isatty() else ("", "")
    print(f"{dim}{text}{plain}", file=sys.stderr, flush=True)
