"""JSON Schema keywords, as tables: where subschemas are, what a value must look like, who enforces them.

`TABLE` classes every keyword of drafts 4 to 2020-12 for llguidance 1.9: enforced by it, or added by our rewriting where
that is exact (`rewrite.py`), or refused. `XGRAMMAR` is the same for xgrammar. Tests hold the tables, the gates and the
libraries together.
"""

from __future__ import annotations

TYPES = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})

ONE_SCHEMA = frozenset(
    {
        "additionalItems", "additionalProperties", "contains", "contentSchema", "else", "if", "items", "not",
        "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties",
    }
)  # fmt: skip
"""The value is a schema (`items`: or, before draft 2020-12, a list of them)."""
SCHEMA_LIST = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
SCHEMA_MAP = frozenset({"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"})

COUNTS = frozenset(
    {"maxContains", "minContains", "maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties"}
)
BOUNDS = frozenset({"exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum"})
STRINGS = frozenset({"$anchor", "$ref", "$schema", "format", "pattern"})

IN_PLACE = ("allOf", "anyOf", "oneOf")
"""Applicators whose subschemas judge the same value as the schema that holds them (`$ref` is one too)."""

PAIRS = (
    ("minLength", "maxLength", "string"),
    ("minItems", "maxItems", "array"),
    ("minProperties", "maxProperties", "object"),
)

BEFORE_2020 = ("draft-03", "draft-04", "draft-06", "draft-07", "2019-09")
"""Drafts, as `$schema` names them, that do not know prefixItems."""

NOT_ENFORCED = "keyword_not_enforced"
"""Code of a refusal that is about one keyword of a well-formed schema: lax mode may leave that keyword out."""

ELSEWHERE = "format_not_enforced"
"""Code of a refusal of what another back end may know."""

ANNOTATION, ENFORCED, ADDED, REFUSED = "annotation", "enforced", "added", "refused"

_CASES = "write the cases as anyOf"
_AFTER = "leave it out and check the result"
_DRAFT_3 = "it is of draft 3"

TABLE: dict[str, tuple[str, str]] = {
    **dict.fromkeys(
        (
            "$comment", "$schema", "$vocabulary", "contentEncoding", "contentMediaType", "contentSchema", "default",
            "deprecated", "description", "examples", "readOnly", "title", "writeOnly",
        ),
        (ANNOTATION, ""),
    ),
    **dict.fromkeys(("$anchor", "$defs", "$id", "$ref", "definitions", "id"), (ENFORCED, "")),
    **dict.fromkeys(
        (
            "additionalItems", "additionalProperties", "allOf", "anyOf", "const", "enum", "exclusiveMaximum",
            "exclusiveMinimum", "items", "maxItems", "maxLength", "maximum", "minItems", "minLength", "minimum",
            "multipleOf", "pattern", "patternProperties", "properties", "required", "type",
        ),
        (ENFORCED, ""),
    ),
    "prefixItems": (ENFORCED, "it is of draft 2020-12; use a list in items"),
    "contains": (ADDED, "bound the array with maxItems, or leave it out and check the result"),
    "dependencies": (ADDED, _CASES),
    "dependentRequired": (ADDED, _CASES),
    "dependentSchemas": (ADDED, _CASES),
    "else": (ADDED, _CASES),
    "format": (ADDED, "leave it out, or write it as a pattern"),
    "if": (ADDED, _CASES),
    "maxContains": (ADDED, _AFTER),
    "maxProperties": (ADDED, "require the declared properties, or leave it out and check the result"),
    "minContains": (ADDED, _AFTER),
    "minProperties": (ADDED, "require the declared properties, or leave it out and check the result"),
    "not": (ADDED, "describe what is allowed instead"),
    "oneOf": (ADDED, "let the branches differ in a required constant, or write anyOf"),
    "propertyNames": (ADDED, "use patternProperties with additionalProperties: false"),
    "then": (ADDED, _CASES),
    "unevaluatedItems": (ADDED, "close the array with items: false"),
    "unevaluatedProperties": (ADDED, "close the object with additionalProperties: false"),
    "uniqueItems": (ADDED, "bound it by a small enum, or leave it out and check the result"),
    "$dynamicAnchor": (REFUSED, "use $defs and $ref"),
    "$dynamicRef": (REFUSED, "use $ref"),
    "$recursiveAnchor": (REFUSED, "use $defs and $ref"),
    "$recursiveRef": (REFUSED, "use $ref"),
    "disallow": (REFUSED, f"{_DRAFT_3}; describe what is allowed instead"),
    "divisibleBy": (REFUSED, f"{_DRAFT_3}; use multipleOf"),
    "extends": (REFUSED, f"{_DRAFT_3}; use allOf"),
}  # fmt: skip
"""Keyword -> (who enforces it, what to do instead where it is refused). Words that are not here judge nothing."""

XGRAMMAR: dict[str, str] = {
    **{name: ANNOTATION if kind == ANNOTATION else REFUSED for name, (kind, _) in TABLE.items()},
    **dict.fromkeys(("$anchor", "$defs", "$id", "definitions", "id"), ENFORCED),  # places, not judgements
    **dict.fromkeys(
        (
            "$ref", "additionalProperties", "anyOf", "const", "enum", "exclusiveMaximum", "exclusiveMinimum", "items",
            "maxItems", "maxLength", "maximum", "minItems", "minLength", "minimum", "pattern", "prefixItems",
            "properties", "required", "type",
        ),
        ENFORCED,
    ),
    **dict.fromkeys(
        (
            "allOf", "dependencies", "dependentRequired", "dependentSchemas", "else", "format", "if", "maxProperties",
            "minProperties", "not", "oneOf", "then", "unevaluatedItems", "unevaluatedProperties", "uniqueItems",
        ),
        ADDED,
    ),
}  # fmt: skip
"""The same for xgrammar 0.2: `added` where our rewriting leaves a form that `xgrammar_gate` passes, and refused else.
outlines-core is not asked for schemas."""

ANNOTATIONS = frozenset(name for name, (kind, _) in TABLE.items() if kind == ANNOTATION)

ASSERTIONS = frozenset(
    name for name, (kind, _) in TABLE.items() if kind != ANNOTATION
) - {"$anchor", "$defs", "$dynamicAnchor", "$id", "$recursiveAnchor", "definitions", "id"}  # fmt: skip
"""Keywords that can make a value fail."""

REWRITTEN = frozenset(name for name, (kind, _) in TABLE.items() if kind in (ADDED, REFUSED)) - {
    "format", "maxProperties", "minProperties", "oneOf",
}  # fmt: skip
"""Keywords that must not reach the back end: they are rewritten or the schema is refused."""

OBJECT_KEYWORDS = frozenset(
    {
        "additionalProperties", "dependencies", "dependentRequired", "dependentSchemas", "patternProperties",
        "properties", "propertyNames", "required", "unevaluatedProperties",
    }
)  # fmt: skip
ARRAY_KEYWORDS = frozenset(
    {
        "additionalItems", "contains", "items", "maxContains", "minContains", "prefixItems", "unevaluatedItems",
        "uniqueItems",
    }
)  # fmt: skip
JUDGES = {
    "format": frozenset({"string", "integer", "number"}),
    "multipleOf": frozenset({"integer", "number"}),
    "pattern": frozenset({"string"}),
}
"""Types that other keywords judge."""


def advice(name: str) -> str:
    """What to do instead of a keyword that is refused."""
    return TABLE.get(name, ("", ""))[1] or "leave it out, or write it in another way"


FORMATS = frozenset(
    {"date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid", "unknown"}
)
"""Formats of strings that are enforced, lexically (29 February is a date in every year)."""
