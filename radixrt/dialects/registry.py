"""Which dialect a model speaks."""

from __future__ import annotations

from radixrt.dialects.dialect import Dialect
from radixrt.dialects.hermes import Hermes
from radixrt.dialects.llama import Llama
from radixrt.dialects.mistral import Mistral, MistralArgs

DIALECTS: dict[str, Dialect] = {dialect.name: dialect for dialect in (Mistral(), MistralArgs(), Llama(), Hermes())}
"""By name, in the order in which a template is tried."""


def detect(template: str, *, knows_tools: bool) -> str | None:
    """The name of the dialect of a chat template; None where it writes calls in a way that is not known here.

    A template that knows no tools gets the Hermes form, in which the system prompt then explains them.
    """
    if not knows_tools:
        return Hermes.name
    return next((name for name, dialect in DIALECTS.items() if dialect.knows(template)), None)
