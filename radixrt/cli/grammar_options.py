"""The limits on constraints as flags, one `--grammar-...` a field of `Limits`."""

from __future__ import annotations

import inspect
from typing import Annotated, Any

import msgspec
import typer

from radixrt.limits import Limits

PANEL = "Limits of one constraint (schema, regex, grammar)"
PREFIX = "grammar_"

HELP = {
    "max_source_bytes": "UTF-8 bytes of a constraint's source.",
    "max_rewritten_bytes": "Characters of a schema after its keywords were said in other words.",
    "max_depth": "Nesting of a schema's JSON, of groups and of parentheses.",
    "max_choices": "Strings of a choice, values of one enum.",
    "max_properties": "Properties of one object.",
    "max_repetition": "Bounds of a repetition {n,m}.",
    "max_minimum_count": "minLength, minItems and minProperties.",
    "max_multiple_of": "multipleOf, read without its point.",
    "compile_timeout_s": "Seconds for compile and first mask.",
    "compile_memory_bytes": "Bytes by which a compile may make its worker grow.",
    "max_step_s": "CPU seconds for one mask or token of a row.",
    "max_row_s": "CPU seconds for all masks and tokens of a row.",
    "max_lexer_states": "States that one row's lexer may build.",
    "mask_deadline_s": "Wall seconds that a step waits for masks; a row whose mask is late fails alone.",
}

NAMES = tuple(PREFIX + name for name in HELP)


def parameters() -> list[inspect.Parameter]:
    """One keyword-only parameter for each limit, with its default."""
    fields = {field.name: field for field in msgspec.structs.fields(Limits)}
    return [
        inspect.Parameter(
            PREFIX + name,
            inspect.Parameter.KEYWORD_ONLY,
            default=fields[name].default,
            annotation=Annotated[
                fields[name].type,
                typer.Option(
                    "--" + (PREFIX + name).replace("_", "-"),
                    metavar="SECONDS" if name.endswith("_s") else "N",
                    min=0 if name.endswith("_s") else 1,
                    help=text,
                    rich_help_panel=PANEL,
                ),
            ],
        )
        for name, text in HELP.items()
    ]


def take(values: dict[str, Any]) -> dict[str, Limits]:
    """Take the limits out of a command's values: {"grammar": Limits} where any differs from its default."""
    limits = Limits(**{name: values.pop(PREFIX + name) for name in HELP})
    return {} if limits == Limits() else {"grammar": limits}
