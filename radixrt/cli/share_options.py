"""The weights of fair shares as a flag that may be given several times: `--namespace-weight NAME=WEIGHT`."""

from __future__ import annotations

import inspect
import math
from typing import Annotated, Any

import typer

NAME = "namespace_weight"


def parameter(panel: str) -> inspect.Parameter:
    """The keyword-only parameter, none given by default."""
    option = typer.Option(
        "--namespace-weight",
        metavar="NAME=WEIGHT",
        help="Share of a tenant (or, without API keys, of a cache salt) beside the others' 1; repeatable.",
        rich_help_panel=panel,
    )
    return inspect.Parameter(
        NAME, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[list[str] | None, option]
    )


def take(values: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Take the weights out of a command's values: {"namespace_weights": ...} where any were given.

    Raises typer.BadParameter for what is not NAME=WEIGHT with a weight above 0.
    """
    weights: dict[str, float] = {}
    for item in values.pop(NAME) or ():
        name, equals, number = item.rpartition("=")
        try:
            weight = float(number)
        except ValueError:
            weight = 0.0
        if not name or not equals or not 0 < weight < math.inf:
            raise typer.BadParameter(
                f"{item!r} is not NAME=WEIGHT with a weight above 0", param_hint="--namespace-weight"
            )
        weights[name] = weight
    return {"namespace_weights": weights} if weights else {}
