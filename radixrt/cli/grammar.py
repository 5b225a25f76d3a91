"""`radixrt grammar check`: what becomes of a constraint before anybody asks for it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from radixrt.errors import InvalidRequest

if TYPE_CHECKING:
    from radixrt.grammar.check import Checker, Report
    from radixrt.params import Constraint

app = typer.Typer(no_args_is_help=True, help="Look at constraints: schemas, regexes, grammars.")
Backend = Literal["auto", "llguidance", "xgrammar", "outlines"]


@app.callback()
def grammar() -> None:
    """Look at constraints: schemas, regexes, grammars.

    Example:  radixrt grammar check --model smollm2-135m schema.json
    """


@app.command("check")
def check(
    *,
    inputs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SCHEMA] [INSTANCE ...]",
            help="Each a file or the text itself; instances are JSON, or plain text under --regex and --grammar.",
            show_default=False,
        ),
    ] = None,
    model: Annotated[str, typer.Option("--model", "-m", metavar="MODEL", help="Model whose tokens count.")] = (
        "smollm2-135m"
    ),
    regex: Annotated[str | None, typer.Option("--regex", metavar="REGEX", help="Instead of SCHEMA.")] = None,
    grammar_text: Annotated[
        str | None,
        typer.Option("--grammar", metavar="GRAMMAR", help="Lark or GBNF, instead of SCHEMA."),
    ] = None,
    cases: Annotated[
        Path | None,
        typer.Option(
            "--cases",
            metavar="FILE.jsonl",
            exists=True,
            dir_okay=False,
            help="Lines of {id, schema, valid, invalid}; answers with one JSON line a case and a summary.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Answer in JSON.")] = False,
    lax: Annotated[bool, typer.Option("--lax", help="Leave out of a schema what cannot be enforced.")] = False,
    any_whitespace: Annotated[
        bool, typer.Option("--any-whitespace", help="Allow whitespace in JSON; instances are then tried in two forms.")
    ] = False,
    backend: Annotated[Backend, typer.Option("--backend", help="Library to ask.")] = "auto",
) -> None:
    """Say whether a constraint is enforced, by what, how fast, and whether instances would be accepted.

    Exit code 1 where the constraint is refused, an instance is not accepted, or (--cases) an invalid one is.

    Example:  radixrt grammar check --model smollm2-135m '{"type": "integer"}' 7 '"x"'
    """
    from radixrt.checkpoint import open_checkpoint, resolve
    from radixrt.grammar.check import Checker
    from radixrt.params import Constraint

    rest = list(inputs or ())
    given = [name for name, value in (("--regex", regex), ("--grammar", grammar_text), ("--cases", cases)) if value]
    if len(given) > 1:
        raise typer.BadParameter(f"give one of {' and '.join(given)}", param_hint=given[1])
    if cases is not None and rest:
        raise typer.BadParameter("--cases brings its own schemas and instances", param_hint="SCHEMA")
    if not given and not rest:
        raise typer.BadParameter("give a SCHEMA, --regex, --grammar or --cases", param_hint="SCHEMA")
    if regex is not None or grammar_text is not None:
        for flag, value in (("--lax", lax), ("--any-whitespace", any_whitespace)):
            if value:
                raise typer.BadParameter(f"is for a JSON schema, not for {given[0]}", param_hint=flag)
    options: dict[str, Any] = {"backend": backend}
    if regex is not None:
        constraint = Constraint(kind="regex", value=regex, **options)
    elif grammar_text is not None:
        constraint = Constraint(kind="grammar", value=_text(grammar_text), **options)
    else:
        options |= {"lax": lax, "any_whitespace": any_whitespace}
        constraint = Constraint(kind="json_schema", value=_text(rest.pop(0)) if rest else "{}", **options)
    vocabulary = open_checkpoint(resolve(model)).vocabulary()
    with Checker(vocabulary) as checker:
        good = _cases(checker, cases, options) if cases else _one(checker, constraint, rest, as_json)
    if not good:
        raise typer.Exit(1)


def _cases(checker: Checker, path: Path, options: dict[str, Any]) -> bool:
    from radixrt.grammar.check import summary

    reports = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        if not line.strip():
            continue
        case = _json(line, f"line {number} of {path}")
        if not isinstance(case, dict) or "id" not in case or "schema" not in case:
            raise InvalidRequest(f"line {number} of {path} is no object with id and schema", param="cases")
        reports.append(checker.case(case, options))
        _print_json(reports[-1])
    total = summary(reports)
    _print_json(total)
    return not total["invalid_accepted"] and not total["error"]


def _one(checker: Checker, constraint: Constraint, instances: list[str], as_json: bool) -> bool:
    report, grammar = checker.compile(constraint)
    is_json = constraint.kind == "json_schema"
    good = grammar is not None
    answers: list[dict[str, Any]] = []
    times: list[float] = []
    for shown in instances:
        if grammar is None:
            break
        text = _text(shown)
        if is_json:
            value = _json(text, "the instance")
            text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        why, masks = checker.follow(grammar, text)
        times += masks
        answer: dict[str, Any] = {"instance": shown, "accepted": why is None}
        if is_json and why is None and constraint.any_whitespace:
            loose = checker.verdict(grammar, value, json.loads(constraint.value), loose=True)
            answer["accepted"] = loose == "accepted"
        elif is_json and why and checker.verdict(grammar, value, json.loads(constraint.value)) == "order":
            why = "accepted with its keys in the order of the schema"
        if why is not None:
            answer["why"] = why
        good = good and answer["accepted"]
        answers.append(answer)
    mask = {"mask_us_p50": _median(times), "mask_us_max": round(max(times), 1) if times else None}
    if as_json:
        import msgspec

        _print_json({**msgspec.structs.asdict(report), **mask, "instances": answers})
    else:
        _say(report, mask, answers)
    return good


def _say(report: Report, mask: dict[str, float | None], answers: list[dict[str, Any]]) -> None:
    if report.status == "enforced":
        masks = f", masks {mask['mask_us_p50']} us (median) {mask['mask_us_max']} us (most)" if answers else ""
        print(f"enforced by {report.backend}: compiled in {report.compile_ms:.1f} ms{masks}")
    else:
        print(f"{report.status} at {report.pointer}: {report.message}")
    for place in report.added:
        print(f"  {place}: said in other words")
    for place in report.ignored:
        print(f"  {place}: NOT enforced (lax)")
    for answer in answers:
        print(f"{'accepted' if answer['accepted'] else 'REFUSED '}  {answer['instance']}")
        if "why" in answer:
            print(f"          {answer['why']}")


def _median(times: list[float]) -> float | None:
    return round(sorted(times)[len(times) // 2], 1) if times else None


def _text(value: str) -> str:
    """The content of the file of this name, or the value itself; `-` is stdin."""
    if value == "-":
        return sys.stdin.read()
    try:
        return Path(value).read_text() if Path(value).is_file() else value
    except (OSError, ValueError):
        return value  # too long for a name


def _json(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidRequest(f"{what} is not JSON: {error}", param=what) from error


def _print_json(value: Any) -> None:
    import msgspec

    print(msgspec.json.encode(value).decode(), flush=True)
