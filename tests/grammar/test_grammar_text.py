"""GBNF and Lark: which is which, what they accept, what is refused with its line."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from radixrt.errors import ConstraintError
from radixrt.grammar import Grammar
from radixrt.grammar.backends import Backends
from radixrt.grammar.cfg import is_gbnf
from radixrt.params import Constraint

Accepts = Callable[[Grammar, str], bool]


def compiled(compiler: Backends, text: str) -> Grammar:
    return compiler.compile(Constraint(kind="grammar", value=text))


@pytest.mark.parametrize(
    ("text", "taken", "refused"),
    [
        ('root ::= "a" root "b" | "x"', ["x", "axb", "aaxbb"], ["", "axbb", "ab"]),
        ('root ::= item ("," item)*\nitem ::= [0-9]+ # digits', ["1", "12,3"], ["", "1,", "a"]),
        ('root ::= "\\u0041B" [\\u00e9\\u0042]', ["ABé", "ABB"], ["AB", "\u41b0", "ABC"]),
        ('root ::= "\\x41\\n" [^a\\]]{2}', ["A\nbc", "A\n[x"], ["A\nab", "A\nb]"]),
        ('root ::= ("a" | "b"){2,3}', ["ab", "bba"], ["a", "abab"]),
        ('start: "a" start "b" | "x"', ["x", "axb"], ["ab"]),
        ('start: NUMBER ("," NUMBER)*\nNUMBER: /[0-9]+/', ["1", "12,3"], ["1,", "x"]),
        ('start: "yes"i | "<tag>" // a comment < here', ["yes", "YES", "<tag>"], ["<tag"]),
        ("%import common.INT\nstart: INT", ["12"], ["x"]),
        ('start: /a\\/b/ "%json"', ["a/b%json"], ["a/b"]),
        ("start: T\nT: ~/(?s:.*(one|two).*)/", ["", "on e", "tw", "a\nb"], ["one", "bone\n", "a two b"]),
        ('start: "a"~2..3', ["aa", "aaa"], ["a", "aaaa"]),
        ('root ::= "" | a\na ::= "x" |', ["", "x"], ["xx"]),
        ('start: none "x"\nnone:\n    | "y"', ["x", "yx"], ["y"]),
        ('root ::=\n  "a" # root ::= "b"', ["a"], ["b"]),
    ],
)
def test_grammars_accept_their_language(
    text: str, taken: list[str], refused: list[str], compiler: Backends, accepts: Accepts
) -> None:
    grammar = compiled(compiler, text)
    assert [one for one in taken if not accepts(grammar, one)] == []
    assert [one for one in refused if accepts(grammar, one)] == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("root ::= missing", "missing is not defined"),
        ("root ::=", "line 1 of the grammar: nothing stands behind root ::="),
        ("root ::= # later\n", "line 1 of the grammar: nothing stands behind root ::="),
        ('root ::= a "x"\na ::=\nb ::= "c"', "line 2 of the grammar: nothing stands behind a ::="),
        ("start:", "line 1 of the grammar: nothing stands behind start:"),
        ('?start.2: // later\nx: "a"', "line 1 of the grammar: nothing stands behind ?start.2:"),
        ('root ::= "a"\nb ::= "x ::= y"\n\nroot ::= "b"', "line 4 of the grammar: root is defined twice"),
        ('start ::= "no"\nroot ::= start? "!"', "start is defined twice"),
        ('root ::= "a', "in the middle of a rule"),
        ('root ::= ("a"', "expected ')'"),
        ('other ::= "a"', "no rule named root"),
        ('root ::= "z"{1000000000,2000000000}', "line 1 of the grammar: a repetition of 2000000000"),
        ("root ::= [\\ud800]", "no character"),
        ("root ::= root", "nothing satisfies"),
        ("start: missing", "missing"),
        ('start: "a', "not closed"),
        ('other: "a"', "no rule named start"),
        ("start: start", "nothing satisfies"),
        ('start: "z"{1000000000}', "limit"),
        ('start: "z"~1..1000000000', "limit"),
        ("start: " + "(" * 70 + '"a"' + ")" * 70, "limit"),
        ('start: "a"\n\nx: <|im_start|>', "line 3 of the grammar: special tokens"),
        ("start: <[12]>", "special tokens"),
        ('start: %json {"type": "integer"}', "use a json_schema constraint"),
        ("start: @other", "no other grammar"),
        ('%llguidance {"allow_invalid_utf8": true}\nstart: "a"', "not supported"),
        ("start[temperature=0.5]: /a/", "'temperature' is not supported"),
        ('start: x "b"\nx[stop="b", max_tokens=3]: /a*/', "'stop' is not supported"),
        ("start: /a(?=b)/", "look-ahead"),
        ("start: /[a&&b]/", "twice in a class"),
    ],
)
def test_what_is_wrong_or_not_enforced_is_refused(text: str, words: str, compiler: Backends) -> None:
    with pytest.raises(ConstraintError) as caught:
        compiled(compiler, text)
    assert caught.value.param == "grammar"
    assert words in caught.value.message


def test_the_notation_is_told_by_the_rules() -> None:
    assert is_gbnf('start ::= "a"') and is_gbnf('# c\n\n  root ::=\n "a"') and is_gbnf('a-b ::= "x"')
    assert not is_gbnf('start: "x ::= y"') and not is_gbnf("%llguidance {}\nstart: /a/")
