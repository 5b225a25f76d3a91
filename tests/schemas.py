"""Random JSON schemas for property tests: small, of most keywords, composed of one another."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-20, 20), st.sampled_from(["", "a", "b c", 'q"', "é", "东"]), st.just(2.5)
)
KEYS = st.sampled_from(["a", "b", "key", "é"])


def bounded(low: str, high: str, **more: Any) -> st.SearchStrategy[dict[str, Any]]:
    return st.tuples(st.integers(0, 3), st.integers(0, 3)).map(lambda pair: {low: min(pair), high: max(pair), **more})


LEAVES = st.one_of(
    SCALARS.map(lambda value: {"const": value}),
    st.lists(SCALARS, min_size=1, max_size=4).map(lambda values: {"enum": values}),
    st.sampled_from(["null", "boolean", "integer", "string", "number"]).map(lambda name: {"type": name}),
    bounded("minLength", "maxLength", type="string"),
    bounded("minimum", "maximum", type="integer"),
    bounded("exclusiveMinimum", "maximum", type="number"),
    st.integers(2, 7).map(lambda n: {"type": "integer", "multipleOf": n, "minimum": 0, "maximum": 60}),
    st.sampled_from(["^[a-c]{1,3}$", "b", "^x|y$", "^\\d+$"]).map(lambda p: {"type": "string", "pattern": p}),
    st.sampled_from(["date", "time", "ipv4", "uuid", "uri-reference", "json-pointer", "byte"]).map(
        lambda name: {"type": "string", "format": name, "maxLength": 40}
    ),
)


def composed(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    properties = st.dictionaries(KEYS, inner, min_size=1, max_size=3)
    objects = st.builds(
        lambda properties, required, rest, more: {
            "type": "object",
            "properties": properties,
            "required": [key for key in properties if key in required],
            "additionalProperties": rest,
            **more,
        },
        properties,
        st.sets(KEYS),
        st.one_of(st.booleans(), inner),
        st.one_of(
            st.just({}),
            st.tuples(KEYS, KEYS).map(lambda pair: {"dependentRequired": {pair[0]: [pair[1]]}}),
            st.tuples(KEYS, SCALARS, KEYS).map(
                lambda one: {"if": {"properties": {one[0]: {"const": one[1]}}}, "then": {"required": [one[2]]}}
            ),
            KEYS.map(lambda key: {"not": {"required": [key]}}),
            st.just({"minProperties": 1}),
        ),
    )
    arrays = st.builds(
        lambda items, bounds: {"type": "array", "items": items, **bounds}, inner, bounded("minItems", "maxItems")
    )
    return st.one_of(
        objects,
        arrays,
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: {"anyOf": parts}),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: {"oneOf": parts}),
        st.tuples(inner, inner).map(lambda pair: {"allOf": list(pair)}),
        st.tuples(inner, SCALARS).map(lambda pair: {"allOf": [pair[0]], "not": {"const": pair[1]}}),
    )


SCHEMAS = st.recursive(LEAVES, composed, max_leaves=6)
