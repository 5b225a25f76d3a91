"""`radixrt grammar check`: its verdicts, its two forms of output, its exit codes."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from radixrt.cli import main

SCHEMA = '{"type":"object","properties":{"a":{"type":"integer"},"b":{"not":{"type":"string"}}},"required":["a"]}'


@pytest.fixture
def check(smollm2_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*arguments: str) -> tuple[int, str, str]:
        try:
            main(["grammar", "check", "--model", str(smollm2_path), *arguments])
            code = 0
        except SystemExit as left:
            code = int(left.code or 0)
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_a_schema_and_its_instances(check: Any, tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text(SCHEMA)
    (tmp_path / "good.json").write_text('{"a": 1}')
    code, out, _ = check(str(tmp_path / "schema.json"), str(tmp_path / "good.json"), '{"a":2,"b":[3]}')
    assert code == 0
    assert out.startswith("enforced by llguidance: compiled in ")
    assert "  /properties/b/not: said in other words" in out
    assert out.count("accepted  ") == 2
    code, out, _ = check(SCHEMA, '{"b":1,"a":2}', '{"a":1,"b":"x"}')
    assert code == 1
    assert "accepted with its keys in the order of the schema" in out and "refused at token" in out


def test_the_same_as_json(check: Any) -> None:
    code, out, _ = check("--json", SCHEMA, '{"a":1}', '{"a":"x"}')
    answer = json.loads(out)
    assert code == 1
    assert (answer["status"], answer["backend"], answer["added"]) == ("enforced", "llguidance", ["/properties/b/not"])
    assert [one["accepted"] for one in answer["instances"]] == [True, False]
    assert answer["compile_ms"] > 0 and answer["mask_us_max"] >= answer["mask_us_p50"] > 0


def test_a_refusal_points_at_the_keyword(check: Any) -> None:
    schema = '{"properties":{"t":{"items":{"type":"string"},"uniqueItems":true}},"type":"object"}'
    code, out, _ = check(schema, "{}")
    assert code == 1 and out.startswith("refused at /properties/t/uniqueItems: ")
    code, out, _ = check("--json", schema)
    assert (code, json.loads(out)["status"], json.loads(out)["pointer"]) == (1, "refused", "/properties/t/uniqueItems")
    code, out, _ = check("--lax", schema, '{"t":["a","a"]}')
    assert code == 0 and "/properties/t/uniqueItems: NOT enforced (lax)" in out


def test_regex_and_grammar(check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check("--regex", "[a-c]+", "abc", "ca")[0] == 0
    assert check("--regex", "[a-c]+", "abd")[0] == 1
    assert check("--grammar", 'root ::= "x" root "y" | "z"', "xxzyy")[0] == 0
    monkeypatch.setattr("sys.stdin", io.StringIO('start: "a" | "b"'))
    code, out, _ = check("--json", "--grammar", "-", "b", "c")
    assert code == 1 and [one["accepted"] for one in json.loads(out)["instances"]] == [True, False]


def test_cases_give_one_line_each_and_a_summary(check: Any, tmp_path: Path) -> None:
    cases = [
        {"id": "one", "schema": json.loads(SCHEMA), "valid": [{"a": 1}, {"b": 1, "a": 1}], "invalid": [{"a": "x"}, {}]},
        {"id": "two", "schema": {"not": {"pattern": "a+b"}}, "valid": [1], "invalid": []},
        {"id": "three", "schema": {"enum": ["x", "é"]}, "valid": ["é"], "invalid": ["y"]},
    ]
    path = tmp_path / "cases.jsonl"
    path.write_text("\n".join(map(json.dumps, cases)))
    code, out, _ = check("--cases", str(path), "--any-whitespace")
    first, second, third, total = map(json.loads, out.splitlines())
    assert code == 0
    assert (first["id"], first["status"], first["backend"], first["pointer"]) == ("one", "enforced", "llguidance", None)
    assert [first[name] for name in ("valid_accepted", "valid_order", "valid_total")] == [1, 1, 2]
    assert [first[name] for name in ("invalid_accepted", "invalid_total")] == [0, 2]
    assert first["compile_ms"] > 0 and first["mask_us_max"] >= first["mask_us_p50"] > 0
    assert (second["status"], second["pointer"], second["valid_total"]) == ("refused", "/not", 0)
    assert third["valid_accepted"] == 1 and third["invalid_total"] == 1
    assert total["summary"] is True
    assert [total[name] for name in ("cases", "enforced", "refused", "error")] == [3, 2, 1, 0]
    assert [total[name] for name in ("valid_accepted", "valid_total", "invalid_accepted")] == [2, 3, 0]


def test_wrong_usage_says_what_is_wrong(check: Any, tmp_path: Path) -> None:
    assert check()[0] == 2
    assert check("--regex", "a", "--grammar", "b")[0] == 2
    code, _, err = check(SCHEMA, "{a}")
    assert code == 1 and "not JSON" in err
    path = tmp_path / "cases.jsonl"
    path.write_text('{"schema": {}}')
    code, _, err = check("--cases", str(path))
    assert code == 1 and "line 1" in err
    code, _, err = check("{", "1")
    assert code == 1
