"""From what a variable holds to what its reader asked for."""

from __future__ import annotations

from typing import Any, Protocol

from radixrt.lang.errors import ProgramError
from radixrt.lang.typed import Codec, codec_for
from radixrt.lang.variables import GenMeta, Value, Variable
from radixrt.results import Choice


class MakeError(Protocol):
    def __call__(
        self, reason: str, variable: Variable, cause: BaseException | None = None, code: str | None = None
    ) -> ProgramError: ...


def decode(variable: Variable, value: Value, type_: Any, make_error: MakeError) -> Any:
    """The value as `type_`, or as the type its gen was written with, or as it is.

    A list that grew by `append=True` is read item by item, each so. `str` gives the raw text of a gen whatever its
    type, so a text that is no value can still be read. A text that max_tokens cut is no value of its type:
    ProgramError with code `truncated`; one that does not read as the type: code `not_a_value`.
    """
    if value.parts:
        return [decode(part, part.future.result(), type_, make_error) for part in value.parts]
    if type_ is str and isinstance(value.raw, str):
        return value.raw
    if type_ is None:
        return _typed(variable, value, value.codec, make_error) if value.codec else value.raw
    if value.codec is not None and value.codec.type == type_:
        return _typed(variable, value, value.codec, make_error)
    if isinstance(type_, type) and isinstance(value.raw, type_) and not isinstance(value.raw, bool):
        return value.raw
    if isinstance(value.raw, str):
        return _typed(variable, value, codec_for(type_), make_error)
    if value.raw.__class__ is type_:
        return value.raw
    raise make_error(f"is a {type(value.raw).__name__}, which cannot be read as {type_}", variable, code="not_a_value")


def _typed(variable: Variable, value: Value, codec: Codec, make_error: MakeError) -> Any:
    samples = value.meta.samples if isinstance(value.meta, GenMeta) else ()
    texts = value.raw if isinstance(value.raw, list) else [value.raw]
    values = [
        _one(variable, text, samples[i] if i < len(samples) else None, codec, make_error)
        for i, text in enumerate(texts)
    ]
    return values if isinstance(value.raw, list) else values[0]


def _one(variable: Variable, text: str, sample: Choice | None, codec: Codec, make_error: MakeError) -> Any:
    cut = sample is not None and sample.finish_reason == "length"
    if cut and codec.whole:
        raise _truncated(variable, text, codec, make_error)
    try:
        return codec.decode(text)
    except ValueError as error:
        if cut:
            raise _truncated(variable, text, codec, make_error) from error
        reason = f"the text does not read as {codec.label}: {error}; the raw text is {text!r}"
        raise make_error(reason, variable, error, "not_a_value") from error


def _truncated(variable: Variable, text: str, codec: Codec, make_error: MakeError) -> ProgramError:
    reason = (
        f"the text was truncated by max_tokens before it was a whole {codec.label}: raise max_tokens; "
        f"the raw text (read it as str) is {text!r}"
    )
    return make_error(reason, variable, code="truncated")
