"""JSON Schema keywords, as tables: where subschemas are, what a value must look like, what cannot be enforced.

The refusals are what llguidance 1.9 refuses in its strict mode, and what it would ignore; tests hold the two together.
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

COUNTS = frozenset({"maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties"})
BOUNDS = frozenset({"exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum"})
STRINGS = frozenset({"$anchor", "$ref", "$schema", "format", "pattern"})

IN_PLACE = ("allOf", "anyOf", "oneOf")
"""Applicators whose subschemas judge the same value as the schema that holds them (`$ref` is one too)."""

PAIRS = (
    ("minLength", "maxLength", "string"),
    ("minItems", "maxItems", "array"),
    ("minProperties", "maxProperties", "object"),
)

REFUSED = {
    "not": "describe what is allowed instead",
    "if": "write the cases as anyOf",
    "then": "write the cases as anyOf",
    "else": "write the cases as anyOf",
    "dependencies": "write the cases as anyOf",
    "dependentRequired": "write the cases as anyOf",
    "dependentSchemas": "write the cases as anyOf",
    "uniqueItems": "leave it out and check the result",
    "contains": "leave it out and check the result",
    "minContains": "leave it out and check the result",
    "maxContains": "leave it out and check the result",
    "unevaluatedItems": "close the array with items: false",
    "unevaluatedProperties": "close the object with additionalProperties: false",
    "propertyNames": "use patternProperties with additionalProperties: false",
    "$dynamicRef": "use $ref",
    "$dynamicAnchor": "use $defs and $ref",
    "$recursiveRef": "use $ref",
    "$recursiveAnchor": "use $defs and $ref",
    "extends": "it is of draft 3; use allOf",
    "disallow": "it is of draft 3; describe what is allowed instead",
    "divisibleBy": "it is of draft 3; use multipleOf",
}
"""Keyword -> what to do instead."""

FORMATS = frozenset(
    {"date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid", "unknown"}
)
"""Formats of strings that are enforced, lexically (29 February is a date in every year)."""

LOCATE = (
    ("oneOf constraints", ("oneOf",)),
    ("min/maxProperties", ("minProperties", "maxProperties")),
    ("patternProperty", ("patternProperties",)),
    ("circular references", ("$ref",)),
    ("Pointer", ("$ref",)),
    ("ref", ("$ref",)),
    ("multipleOf", ("multipleOf",)),
    ("multiple of", ("multipleOf",)),
    ("range", ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")),
    ("invalid regex", ("pattern", "patternProperties")),
    ("regex", ("pattern", "patternProperties")),
    ("lookaround", ("pattern", "patternProperties")),
    ("Unknown format", ("format",)),
    ("minLength", ("minLength",)),
    ("minItems", ("minItems",)),
    ("minimum", ("minimum", "exclusiveMinimum")),
)
"""Words of a back end's refusal -> keywords, whose first place in the schema is then the pointer."""
