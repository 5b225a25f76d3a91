"""A stand-in for the engine that the commands drive."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Self

from radixrt.messages import ChatMessage
from radixrt.params import SamplingParams
from radixrt.results import Delta, ModelInfo, Usage

INFO = ModelInfo(
    name="fake", context_length=128, kv_tokens=256, vocab_size=10, dtype="float32", device="cpu", threads=1,
    eos_token_ids=(0,), has_chat_template=True,
)  # fmt: skip


class FakeEngine:
    """Answers each conversation with how many messages it holds; remembers what it was given."""

    made: ClassVar[list[FakeEngine]] = []

    def __init__(self, model: str, **options: Any) -> None:
        self.model = model
        self.on_progress = options.pop("on_progress", None)
        self.options = options
        self.asked: list[list[ChatMessage]] = []
        self.sampling: SamplingParams | None = None
        self.closed_streams = 0
        self.failure: Exception | None = None
        self.interrupt_after: int | None = None
        self.info = INFO
        FakeEngine.made.append(self)

    def __enter__(self) -> Self:
        if self.on_progress is not None:
            self.on_progress("loading", 0.5)
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def stream(self, prompt: Sequence[ChatMessage], sampling_params: SamplingParams, **_: Any) -> Iterator[Delta]:
        self.asked.append(list(prompt))
        self.sampling = sampling_params
        if self.failure is not None:
            raise self.failure
        try:
            for number, word in enumerate(("You ", "sent ", f"{len(prompt)} messages.")):
                if number == self.interrupt_after:
                    raise KeyboardInterrupt
                yield Delta(text=word)
            usage = Usage(prompt_tokens=20, cached_tokens=7, completion_tokens=3)
            yield Delta(finish_reason="stop", usage=usage)
        finally:
            self.closed_streams += 1
