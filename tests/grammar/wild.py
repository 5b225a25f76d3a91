"""Schemas of the kinds that are found in the wild, with instances that they take and that they do not.

Written for these tests. `jsonschema` judges every instance, so a wrong verdict here would be found.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Case(NamedTuple):
    name: str
    schema: Any
    valid: list[Any]
    invalid: list[Any]


def _object(properties: dict[str, Any], *required: str, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required), **more}


def _text(**more: Any) -> dict[str, Any]:
    return {"type": "string", **more}


_D7 = {"$schema": "http://json-schema.org/draft-07/schema#"}
_D4 = {"$schema": "http://json-schema.org/draft-04/schema#"}
_D2019 = {"$schema": "https://json-schema.org/draft/2019-09/schema"}
_D2020 = {"$schema": "https://json-schema.org/draft/2020-12/schema"}

_STEP = {
    "type": "object",
    "properties": {"name": _text(), "uses": _text(pattern="^[^@]+@.+$"), "run": _text(), "with": {"type": "object"}},
    "oneOf": [{"required": ["uses"]}, {"required": ["run"]}],
    "additionalProperties": False,
}
_POSITION = {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 3}
_TREE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": _object(
            {"value": {"type": "integer"}, "children": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
            "value",
            additionalProperties=False,
        )
    },
}

CASES: list[Case] = [
    Case(
        "workflow",
        {
            **_D7,
            **_object(
                {
                    "name": _text(),
                    "on": {
                        "anyOf": [
                            {"enum": ["push", "pull_request"]},
                            {"type": "array", "items": {"enum": ["push", "pull_request"]}, "minItems": 1},
                        ]
                    },
                    "jobs": {
                        "type": "object",
                        "patternProperties": {
                            "^[_a-zA-Z][a-zA-Z0-9_-]*$": _object(
                                {"runs-on": _text(), "steps": {"type": "array", "items": _STEP}}, "runs-on"
                            )
                        },
                        "additionalProperties": False,
                        "minProperties": 1,
                    },
                },
                "on",
                "jobs",
            ),
        },
        [
            {"on": "push", "jobs": {"build": {"runs-on": "ubuntu", "steps": [{"run": "make"}]}}},
            {"name": "CI", "on": ["push"], "jobs": {"a": {"runs-on": "x", "steps": [{"uses": "a/b@v1"}]}}},
        ],
        [
            {"on": "push", "jobs": {}},
            {"on": "tag", "jobs": {"a": {"runs-on": "x"}}},
            {"on": "push", "jobs": {"1a": {"runs-on": "x"}}},
            {"on": "push", "jobs": {"a": {"runs-on": "x", "steps": [{"uses": "a@b", "run": "c"}]}}},
            {"on": "push", "jobs": {"a": {"runs-on": "x", "steps": [{"name": "n"}]}}},
            {"on": "push", "jobs": {"a": {"runs-on": "x", "steps": [{"uses": "nothing"}]}}},
        ],
    ),
    Case(
        "custom resource",
        _object(
            {
                "apiVersion": {"const": "example.org/v1"},
                "kind": {"const": "Widget"},
                "metadata": _object({"name": _text(pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", maxLength=63)}, "name"),
                "spec": _object(
                    {
                        "replicas": {"type": "integer", "format": "int32", "minimum": 0, "maximum": 10},
                        "port": {"anyOf": [{"type": "integer"}, _text()], "x-kubernetes-int-or-string": True},
                        "policy": {"enum": ["Always", "Never"]},
                    },
                    "replicas",
                ),
            },
            "apiVersion",
            "kind",
            "spec",
        ),
        [
            {"apiVersion": "example.org/v1", "kind": "Widget", "spec": {"replicas": 3, "port": "http"}},
            {"apiVersion": "example.org/v1", "kind": "Widget", "metadata": {"name": "a-1"}, "spec": {"replicas": 10}},
        ],
        [
            {"apiVersion": "example.org/v1", "kind": "Widget", "spec": {"replicas": 11}},
            {"apiVersion": "example.org/v2", "kind": "Widget", "spec": {"replicas": 1}},
            {"apiVersion": "example.org/v1", "kind": "Widget", "metadata": {"name": "-a"}, "spec": {"replicas": 1}},
            {"apiVersion": "example.org/v1", "kind": "Widget", "spec": {"replicas": 1, "port": 1.5}},
        ],
    ),
    Case(
        "pet by discriminator",
        {
            "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}],
            "discriminator": {"propertyName": "type"},
            "$defs": {
                "Cat": _object({"type": {"const": "cat"}, "lives": {"type": "integer", "maximum": 9}}, "type"),
                "Dog": _object({"type": {"const": "dog"}, "tricks": {"type": "array", "items": _text()}}, "type"),
            },
        },
        [{"type": "cat", "lives": 9}, {"type": "dog", "tricks": ["sit"]}, {"type": "dog", "lives": "none"}],
        [{"type": "cat", "lives": 10}, {"type": "cow"}, {"lives": 3}, {"type": "dog", "tricks": [1]}],
    ),
    Case(
        "nullable in OpenAPI 3.1",
        _object({"name": {"type": ["string", "null"], "maxLength": 3}, "age": {"type": ["integer", "null"]}}, "name"),
        [{"name": None, "age": None}, {"name": "abc", "age": 3}],
        [{"name": "abcd"}, {"name": 3}, {"name": None, "age": "x"}, {}],
    ),
    Case(
        "event of self-describing kind",
        {
            "$schema": "http://iglucentral.com/schemas/com.snowplowanalytics.self-desc/schema/jsonschema/1-0-0#",
            "self": {"vendor": "org.example", "name": "click", "format": "jsonschema", "version": "1-0-0"},
            **_object(
                {
                    "target": _text(maxLength=255),
                    "count": {"type": "integer", "minimum": 0, "maximum": 32767},
                    "ratio": {"type": ["number", "null"], "minimum": 0, "maximum": 1},
                },
                "target",
                additionalProperties=False,
            ),
        },
        [{"target": "a"}, {"target": "a", "count": 32767, "ratio": 0.5}, {"target": "", "ratio": None}],
        [{"target": "a", "count": 32768}, {"target": "a", "ratio": 1.5}, {"count": 1}, {"target": "a", "more": 1}],
    ),
    Case(
        "package",
        {
            **_D7,
            **_object(
                {
                    "name": _text(
                        pattern="^(?:@[a-z0-9-*~][a-z0-9-*._~]*/)?[a-z0-9-~][a-z0-9-._~]*$", maxLength=214, minLength=1
                    ),
                    "version": _text(),
                    "private": {"anyOf": [{"type": "boolean"}, {"enum": ["false", "true"]}]},
                    "dependencies": {"$ref": "#/definitions/dependency"},
                    "author": {"$ref": "#/definitions/person"},
                    "keywords": {"type": "array", "items": _text()},
                },
                "name",
            ),
            "definitions": {
                "dependency": {"type": "object", "additionalProperties": _text()},
                "person": {"type": ["object", "string"], "required": ["name"], "properties": {"name": _text()}},
            },
        },
        [
            {"name": "@a/b", "dependencies": {"x": "^1"}, "author": "Ann"},
            {"name": "left", "private": "true", "author": {"name": "Ann", "email": "a@b.c"}},
        ],
        [{"name": "Left"}, {"name": "a", "dependencies": {"x": 1}}, {"name": "a", "author": {"email": "x"}}],
    ),
    Case(
        "compiler options",
        {
            **_D7,
            "allOf": [
                {"properties": {"extends": {"type": ["string", "array"]}}},
                {
                    "properties": {
                        "compilerOptions": _object(
                            {
                                "target": {
                                    "anyOf": [
                                        {"enum": ["ES5", "ES6", "ESNext"]},
                                        {"pattern": "^([Ee][Ss]([356]|(20(1[56789]|2[01234]))))$"},
                                    ]
                                },
                                "strict": {"type": "boolean"},
                            }
                        )
                    }
                },
                {"anyOf": [{"required": ["files"]}, {"required": ["include"]}, {"required": ["compilerOptions"]}]},
            ],
            "properties": {"files": {"type": "array", "items": _text()}, "include": {"type": "array"}},
            "type": "object",
        },
        [{"compilerOptions": {"target": "ES6", "strict": True}}, {"files": ["a.ts"]}],
        [{"extends": "x"}, {"compilerOptions": {"strict": 1}}, {"files": [1]}, {"files": ["a"], "extends": 3}],
    ),
    Case(
        "rule levels",
        {
            **_D4,
            "type": "object",
            "additionalProperties": {
                "oneOf": [
                    {"enum": [0, 1, 2]},
                    {"enum": ["off", "warn", "error"]},
                    {
                        "type": "array",
                        "items": [{"enum": ["off", "warn", "error"]}],
                        "additionalItems": True,
                        "minItems": 1,
                    },
                ]
            },
        },
        [{"semi": 2, "quotes": ["error", "double"]}, {}, {"a": "off"}],
        [{"semi": 3}, {"semi": []}, {"semi": ["fatal"]}, {"semi": "on"}],
    ),
    Case(
        "geometry",
        {
            "oneOf": [
                _object({"type": {"enum": ["Point"]}, "coordinates": _POSITION}, "type", "coordinates"),
                _object(
                    {
                        "type": {"enum": ["LineString"]},
                        "coordinates": {"type": "array", "minItems": 2, "items": _POSITION},
                    },
                    "type",
                    "coordinates",
                ),
            ]
        },
        [
            {"type": "Point", "coordinates": [1.5, -2]},
            {"type": "LineString", "coordinates": [[0, 0], [1, 1]], "bbox": [0, 0, 1, 1]},
        ],
        [
            {"type": "Point", "coordinates": [1]},
            {"type": "LineString", "coordinates": [[0, 0]]},
            {"type": "Polygon", "coordinates": []},
            {"type": "Point"},
        ],
    ),
    Case(
        "function call",
        _object(
            {
                "location": _text(description="City"),
                "unit": _text(enum=["celsius", "fahrenheit"]),
                "days": {"type": "integer", "minimum": 1, "maximum": 14, "default": 1},
            },
            "location",
            additionalProperties=False,
        ),
        [{"location": "Oslo"}, {"location": "Oslo", "unit": "celsius", "days": 14}],
        [{"unit": "celsius"}, {"location": "Oslo", "days": 0}, {"location": "Oslo", "unit": "kelvin"}, {"location": 1}],
    ),
    Case(
        "story elements",
        _object(
            {
                "type": {"const": "story"},
                "version": _text(pattern="^0\\.10\\.[0-9]+$"),
                "content_elements": {
                    "type": "array",
                    "items": {
                        "oneOf": [
                            _object({"type": {"const": "text"}, "content": _text()}, "type", "content"),
                            _object({"type": {"const": "image"}, "url": _text(format="uri")}, "type", "url"),
                        ]
                    },
                },
            },
            "type",
            "version",
        ),
        [{"type": "story", "version": "0.10.4", "content_elements": [{"type": "text", "content": "x"}]}],
        [
            {"type": "story", "version": "0.11.4"},
            {"type": "story", "version": "0.10.4", "content_elements": [{"type": "text"}]},
            {"type": "story", "version": "0.10.4", "content_elements": [{"type": "image", "url": 1}]},
        ],
    ),
    Case(
        "mark of a chart",
        _object(
            {
                "mark": {"anyOf": [{"enum": ["bar", "line"]}, _object({"type": {"enum": ["bar", "line"]}}, "type")]},
                "encoding": {
                    "type": "object",
                    "propertyNames": {"enum": ["x", "y", "color"]},
                    "additionalProperties": _object({"field": _text()}, "field"),
                },
                "width": {"oneOf": [{"type": "number", "minimum": 0}, {"const": "container"}]},
            },
            "mark",
        ),
        [{"mark": "bar", "encoding": {"x": {"field": "a"}}}, {"mark": {"type": "line"}, "width": "container"}],
        [
            {"mark": "pie"},
            {"mark": "bar", "encoding": {"z": {"field": "a"}}},
            {"mark": "bar", "width": -1},
            {"mark": "bar", "encoding": {"x": {}}},
        ],
    ),
    Case(
        "country decides the code",
        {
            **_object({"country": {"enum": ["US", "NL"]}, "code": _text()}, "country", "code"),
            "if": {"properties": {"country": {"const": "US"}}},
            "then": {"properties": {"code": {"pattern": "^[0-9]{5}$"}}},
            "else": {"properties": {"code": {"pattern": "^[0-9]{4} [A-Z]{2}$"}}},
        },
        [{"country": "US", "code": "12345"}, {"country": "NL", "code": "1234 AB"}],
        [{"country": "US", "code": "1234 AB"}, {"country": "NL", "code": "12345"}, {"country": "US"}],
    ),
    Case(
        "card needs an address",
        {
            **_object({"name": _text(), "card": {"type": "integer"}, "address": _text()}, "name"),
            "dependentRequired": {"card": ["address"]},
            "additionalProperties": False,
        },
        [{"name": "a"}, {"name": "a", "address": "b"}, {"name": "a", "card": 1, "address": "b"}],
        [{"name": "a", "card": 1}, {"card": 1, "address": "b"}],
    ),
    Case(
        "dependencies of draft 7",
        {
            **_D7,
            **_object({"a": {"type": "integer"}, "b": {"type": "integer"}, "c": {"type": "integer"}}),
            "dependencies": {"a": ["b"], "b": {"required": ["c"]}},
        },
        [{}, {"c": 1}, {"b": 1, "c": 1}, {"a": 1, "b": 2, "c": 3}],
        [{"a": 1}, {"b": 1}, {"a": 1, "b": 1}],
    ),
    Case(
        "unique labels",
        {"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": True},
        [[], ["a"], ["c", "a", "b"]],
        [["a", "a"], ["a", "b", "a"], ["d"]],
    ),
    Case("unique of any", {"type": "array", "uniqueItems": True}, [[], [1]], [[1, 1], ["a", "a"]]),
    Case(
        "at least one five",
        {"type": "array", "items": {"type": "integer"}, "contains": {"const": 5}},
        [[5], [1, 5, 2]],
        [[], [1, 2], ["5"]],
    ),
    Case(
        "steps",
        {"type": "number", "multipleOf": 0.25, "minimum": 0, "maximum": 10},
        [0, 0.25, 9.75, 10],
        [0.3, -0.25, 10.25],
    ),
    Case(
        "not a reserved name",
        {"type": "string", "not": {"enum": ["admin", "root"]}},
        ["user", "", "adminx", "roo"],
        ["admin", "root", 3],
    ),
    Case("not a pattern", {"type": "string", "not": {"pattern": "^_"}}, ["a_", ""], ["_a", "_"]),
    Case("not of a key", {"type": "object", "not": {"required": ["secret"]}}, [{}, {"a": 1}], [{"secret": 1}]),
    Case("letters of two scripts", {"type": "string", "pattern": "^[a-zé東京]+$"}, ["東京", "né"], ["a1", "", "a b"]),
    Case(
        "one character", {"type": "string", "minLength": 1, "maxLength": 1}, ["😀", "é", "\n", '"'], ["", "ab", "😀😀"]
    ),
    Case("letters in a range", {"type": "string", "pattern": "^[\\u00e0-\\u00ff]{2}$"}, ["éè"], ["ea", "é"]),
    Case(
        "large enum",
        {"enum": [f"value-{i:04}" for i in range(1500)]},
        ["value-0000", "value-1499"],
        ["value-1500", "value", "value-00000"],
    ),
    Case(
        "enum of anything",
        {"enum": [1, "1", None, True, [1, {"a": None}], {"b": [2]}]},
        [1, "1", None, True, [1, {"a": None}], {"b": [2]}],
        [2, "true", False, [1], {"b": [3]}, {}],
    ),
    Case(
        "map of integers",
        {"type": "object", "additionalProperties": {"type": "integer"}},
        [{}, {"a": 1, "b": -2}],
        [{"a": "1"}, {"a": 1, "b": None}],
    ),
    Case(
        "headers",
        {"type": "object", "patternProperties": {"^x-": _text()}, "additionalProperties": {"type": "number"}},
        [{"x-a": "1", "b": 2}, {}],
        [{"x-a": 1}, {"b": "2"}],
    ),
    Case(
        "tuple of 2020",
        {**_D2020, "type": "array", "prefixItems": [_text(), {"type": "integer"}], "items": False},
        [[], ["a"], ["a", 1]],
        [["a", 1, 2], [1], ["a", "b"]],
    ),
    Case(
        "tuple of draft 7",
        {
            **_D7,
            "type": "array",
            "items": [_text(), {"type": "integer"}],
            "additionalItems": {"type": "boolean"},
            "minItems": 1,
        },
        [["a"], ["a", 1], ["a", 1, True, False]],
        [[], ["a", 1, 2], [1]],
    ),
    Case(
        "tuple of 2019",
        {**_D2019, "items": [{"const": 1}], "additionalItems": False, "type": "array", "minItems": 1},
        [[1]],
        [[1, 2], [2], []],
    ),
    Case(
        "tree",
        _TREE,
        [{"value": 1}, {"value": 1, "children": [{"value": 2, "children": []}]}],
        [{"value": 1, "children": [{}]}, {"children": []}, {"value": 1, "more": 2}],
    ),
    Case(
        "mutual recursion",
        {
            "$ref": "#/definitions/list",
            **_D7,
            "definitions": {
                "list": {"type": "array", "items": {"$ref": "#/definitions/item"}, "maxItems": 3},
                "item": {"anyOf": [{"type": "integer"}, {"$ref": "#/definitions/list"}]},
            },
        },
        [[], [1, [2, [3]]]],
        [[1, 2, 3, 4], ["a"], [[["a"]]], 1],
    ),
    Case(
        "expression",
        {
            "$defs": {
                "e": {
                    "oneOf": [
                        {"type": "number"},
                        _object(
                            {
                                "op": {"enum": ["+", "-"]},
                                "args": {"type": "array", "items": {"$ref": "#/$defs/e"}, "minItems": 2, "maxItems": 2},
                            },
                            "op",
                            "args",
                            additionalProperties=False,
                        ),
                    ]
                }
            },
            "$ref": "#/$defs/e",
        },
        [1, {"op": "+", "args": [1, {"op": "-", "args": [2, 3]}]}],
        [{"op": "*", "args": [1, 2]}, {"op": "+", "args": [1]}, "1", {"op": "+", "args": [1, {"op": "-"}]}],
    ),
    Case(
        "anchor",
        {
            "$defs": {"p": {"$anchor": "positive", "type": "integer", "minimum": 1}},
            "type": "array",
            "items": {"$ref": "#positive"},
        },
        [[], [1, 2]],
        [[0], ["1"]],
    ),
    Case(
        "ids",
        {
            "$id": "https://example.org/root",
            "$defs": {"p": {"$id": "parts/p", "type": "boolean"}},
            "type": "object",
            "properties": {"a": {"$ref": "parts/p"}, "b": {"$ref": "https://example.org/parts/p"}},
        },
        [{"a": True, "b": False}],
        [{"a": 1}, {"b": "x"}],
    ),
    Case(
        "keys with slashes",
        {
            "definitions": {"a/b": {"type": "null"}, "c~d%": {"const": 1}},
            "type": "object",
            "properties": {"x": {"$ref": "#/definitions/a~1b"}, "y": {"$ref": "#/definitions/c~0d%25"}},
        },
        [{"x": None, "y": 1}],
        [{"x": 1}, {"y": None}],
    ),
    Case(
        "overlapping objects",
        {
            "anyOf": [
                _object({"a": {"type": "integer"}, "b": _text()}, "a"),
                _object({"a": {"type": "integer"}, "c": _text()}, "c"),
            ]
        },
        [{"a": 1, "b": "x"}, {"a": 1, "c": "x"}, {"c": "x"}],
        [{}, {"b": "x"}, {"a": "1", "c": "x"}],
    ),
    Case(
        "booleans as schemas",
        {"type": "object", "properties": {"yes": True, "no": False}},
        [{}, {"yes": [1]}],
        [{"no": 1}, {"yes": 1, "no": None}],
    ),
    Case(
        "merged",
        {
            "allOf": [_object({"a": _text()}, "a"), _object({"b": {"type": "integer"}}, "b")],
            "unevaluatedProperties": False,
            **_D2020,
        },
        [{"a": "x", "b": 1}],
        [{"a": "x"}, {"b": 1}, {"a": "x", "b": 1, "c": 2}],
    ),
    Case(
        "bounds of draft 4",
        {**_D4, "type": "number", "minimum": 0, "exclusiveMinimum": True, "maximum": 5},
        [0.5, 5, 1],
        [0, -1, 5.5],
    ),
    Case(
        "bounds of draft 7",
        {"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 100},
        [1, 99],
        [0, 100, -5, 1.5],
    ),
    Case("a number above", {"type": "number", "exclusiveMinimum": 2.5}, [2.6, 3, 100], [2.5, 2, -3]),
    Case(
        "formats",
        _object(
            {
                "day": _text(format="date"),
                "at": _text(format="date-time"),
                "id": _text(format="uuid"),
                "ip": _text(format="ipv4"),
                "mail": _text(format="email"),
            },
            additionalProperties=False,
        ),
        [
            {"day": "2024-05-06"},
            {"at": "2024-05-06T12:30:00Z"},
            {"id": "123e4567-e89b-12d3-a456-426614174000"},
            {"ip": "10.0.0.1"},
            {"mail": "a.b@example.org"},
        ],
        [{"day": "2024-13-06"}, {"at": 3}, {"id": "1-2"}, {"ip": "10.0.0.256"}, {"mail": "nobody"}],
    ),
    Case(
        "siblings of a reference",
        {
            **_D2020,
            "$defs": {"s": _text(maxLength=5)},
            "type": "object",
            "properties": {"a": {"$ref": "#/$defs/s", "minLength": 2}},
        },
        [{"a": "xx"}, {"a": "xxxxx"}, {}],
        [{"a": "x"}, {"a": "xxxxxx"}],
    ),
    Case(
        "siblings in draft 7",
        {
            **_D7,
            "definitions": {"s": _text()},
            "type": "object",
            "properties": {"a": {"$ref": "#/definitions/s", "maxLength": 1}},
        },
        [{"a": "xx"}],
        [{"a": 1}],
    ),
    Case(
        "bounded object",
        {"type": "object", "additionalProperties": _text(), "minProperties": 1, "maxProperties": 2},
        [{"a": "x"}, {"a": "x", "b": "y"}],
        [{}, {"a": "x", "b": "y", "c": "z"}, {"a": 1}],
    ),
    Case(
        "pattern and length",
        {"type": "string", "pattern": "^[a-z-]+$", "minLength": 3, "maxLength": 5},
        ["abc", "a-b-c"],
        ["ab", "abcdef", "ABC", "a_c"],
    ),
    Case("searched pattern", {"type": "string", "pattern": "foo|^bar"}, ["foo", "xfoox", "barx"], ["xbar", "fo", ""]),
    Case(
        "escapes",
        {"enum": ['a"b', "tab\t", "line\n", "back\\slash", "/"]},
        ['a"b', "tab\t", "line\n", "back\\slash", "/"],
        ["a", "tab", "back"],
    ),
    Case("control characters", {"enum": ["\x00", "a\x1fb", "plain"]}, ["\x00", "a\x1fb", "plain"], ["\x01", "", "ab"]),
    Case(
        "const object",
        {"const": {"a": [1, 2, {"b": None}], "c": "d"}},
        [{"a": [1, 2, {"b": None}], "c": "d"}],
        [{"a": [1, 2], "c": "d"}, {"c": "d"}],
    ),
    Case(
        "nested conditions",
        {
            "type": "object",
            "properties": {"kind": {"enum": ["a", "b", "c"]}, "size": {"type": "integer"}, "name": _text()},
            "required": ["kind"],
            "additionalProperties": False,
            "allOf": [
                {"if": {"properties": {"kind": {"const": "a"}}}, "then": {"required": ["size"]}},
                {"if": {"properties": {"kind": {"const": "b"}}}, "then": {"required": ["name"]}},
            ],
        },
        [{"kind": "a", "size": 1}, {"kind": "b", "name": "x"}, {"kind": "c"}],
        [{"kind": "a"}, {"kind": "b", "size": 1}, {"kind": "a", "name": "x"}, {"size": 1}],
    ),
    Case(
        "oneOf of types",
        {"oneOf": [{"type": "integer"}, {"type": "string"}, {"type": "array", "items": {"type": "null"}}]},
        [1, "a", [None]],
        [1.5, [1], {}, None],
    ),
    Case(
        "oneOf of required",
        {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "oneOf": [{"required": ["a"]}, {"required": ["b"]}],
            "additionalProperties": False,
        },
        [{"a": 1}, {"b": 1}],
        [{}, {"a": 1, "b": 1}],
    ),
    *(
        Case(
            f"contains in {name}",
            {**draft, "type": "array", "maxItems": 2, "contains": {"type": "string"}, "not": {"items": [{"const": 1}]}},
            [["a"], [2, "a"]],
            [[], [2], [1, "a"], [{}, {}]],
        )
        for name, draft in (("draft 7", _D7), ("2019-09", _D2019))
    ),
]
