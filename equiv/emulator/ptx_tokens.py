"""PTX text as tokens, without the two directives that end with the line instead of a semicolon: `.loc`, `.file`."""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass

from equiv.errors import PtxSyntaxError

# A word may hold dots and double colons: an opcode (`ld.shared::cta.b32`), a directive, a register, a label.
_TOKEN = re.compile(
    r"""(?P<skip>[ \t\r\n\f\v]+|//[^\n]*|/\*.*?\*/)
      | (?P<word>[.%$_A-Za-z][A-Za-z0-9_$]*(?:(?:\.|::)[A-Za-z0-9_$]+)*)
      | (?P<number>0[fF][0-9A-Fa-f]{8}(?![\w.])|0[dD][0-9A-Fa-f]{16}(?![\w.])
          |0[xX][0-9A-Fa-f]+U?(?![\w.])|0[bB][01]+U?(?![\w.])
          |[0-9]+(?:\.[0-9]*(?:[eE][+-]?[0-9]+)?|[eE][+-]?[0-9]+)(?![\w.])|[0-9]+U?(?![\w.]))
      | (?P<string>"(?:[^"\\\n]|\\.)*")
      | (?P<mark>[][{}()<>,;:@!|+\-=])
    """,
    re.VERBOSE | re.DOTALL,
)
END = "end of text"


@dataclass(frozen=True, slots=True)
class Location:
    """A `.loc`: what follows the token with index `at` comes from this line of this file.

    Compilers put what they make themselves (jumps of loops, selections) at line 0, or at column 0 of some outer line.
    """

    at: int
    file: int
    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of a text. `kinds` are `word`, `number`, `string`, `mark`; one `END` token closes the lists.

    Attributes:
        starts: first character of each token.
        locations: the `.loc` directives in order of `at`.
        files: number of a `.file` -> its path as spelt.
        labels: index of an opening brace -> names of the labels that stand directly in that block.
        closing: index of an opening brace -> index of the closing one.
    """

    text: str
    kinds: list[str]
    values: list[str]
    starts: list[int]
    newlines: list[int]
    locations: list[Location]
    files: dict[int, str]
    labels: dict[int, list[str]]
    closing: dict[int, int]

    def line(self, index: int) -> int:
        """One-based line of a token."""
        return bisect_right(self.newlines, self.starts[index]) + 1


def tokenize(text: str) -> Tokens:
    """Split a PTX text.

    Raises:
        PtxSyntaxError: a character that starts no token, a brace without its partner, a malformed `.loc` or `.file`.
    """
    newlines = [match.start() for match in re.finditer("\n", text)]
    tokens = Tokens(text, [], [], [], newlines, [], {}, {}, {})
    kinds, values, starts = tokens.kinds, tokens.values, tokens.starts
    open_braces: list[int] = []
    match_at = _TOKEN.match
    position, end = 0, len(text)
    while position < end:
        match = match_at(text, position)
        if match is None:
            raise PtxSyntaxError(
                f"no PTX token starts with {text[position : position + 12]!r}", _line(newlines, position)
            )
        kind, value, start, position = match.lastgroup, match.group(), position, match.end()
        assert kind is not None
        if kind == "skip":
            continue
        if value in {".loc", ".file"}:
            position = _end_of_line(newlines, start, end)
            _line_directive(tokens, text[start:position], start)
            continue
        if value == "{":
            open_braces.append(len(kinds))
            tokens.labels[len(kinds)] = []
        elif value == "}":
            if not open_braces:
                raise PtxSyntaxError("'}' without '{'", _line(newlines, start))
            tokens.closing[open_braces.pop()] = len(kinds)
        elif value == ":" and open_braces and kinds[-1] == "word":
            tokens.labels[open_braces[-1]].append(values[-1])
        kinds.append(kind)
        values.append(value)
        starts.append(start)
    if open_braces:
        raise PtxSyntaxError("'{' without '}'", tokens.line(open_braces[-1]))
    kinds.append(END)
    values.append(END)
    starts.append(end)
    return tokens


def _line(newlines: list[int], position: int) -> int:
    return bisect_right(newlines, position) + 1


def _end_of_line(newlines: list[int], position: int, end: int) -> int:
    following = bisect_right(newlines, position)
    return newlines[following] if following < len(newlines) else end


def _line_directive(tokens: Tokens, directive: str, start: int) -> None:
    location = re.match(r"\.loc\s+(\d+)\s+(\d+)\s+(\d+)", directive)
    if location:
        tokens.locations.append(Location(len(tokens.kinds), *map(int, location.groups())))
        return
    file = re.match(r'\.file\s+(\d+)\s+"([^"]*)"', directive)
    if file is None:
        raise PtxSyntaxError(f"not a .loc or .file directive: {directive.strip()}", _line(tokens.newlines, start))
    tokens.files[int(file.group(1))] = file.group(2)
