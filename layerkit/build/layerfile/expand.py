"""`substitute` with places: a word's variables put in, what is wrong reported at its line. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from layerkit._util.text import did_you_mean
from layerkit.build.layerfile.heredoc import Heredoc
from layerkit.build.layerfile.nodes import Instruction, Layerfile
from layerkit.build.layerfile.substitute import Substitution, SubstitutionError, substitute
from layerkit.build.layerfile.words import Word
from layerkit.errors import LayerfileError


def error_at(layerfile: Layerfile, word: Word, message: str, *, hint: str = "") -> LayerfileError:
    """An error that points at a word."""
    return layerfile.text.error(message, word.line, column=word.column, width=max(1, len(word.raw)), hint=hint)


def error_in(layerfile: Layerfile, instruction: Instruction, message: str, *, hint: str = "") -> LayerfileError:
    """An error that points at an instruction's first line."""
    return layerfile.text.error(message, instruction.span.first, hint=hint)


def expand(layerfile: Layerfile, word: Word, variables: Mapping[str, str], *, strict: bool = False) -> str:
    """A word's value.

    Args:
        layerfile: where the word stands.
        word: as written.
        variables: names to values.
        strict: refuse a plain `$name` that is not set.

    Raises:
        LayerfileError: whatever `substitute` finds, at the word's line.
    """
    return expansion(layerfile, word, variables, strict=strict).text


def expansion(layerfile: Layerfile, word: Word, variables: Mapping[str, str], *, strict: bool = False) -> Substitution:
    """As `expand`, with the names that were used."""
    try:
        return substitute(word.raw, variables, layerfile.escape, strict=strict)
    except SubstitutionError as error:
        hint = did_you_mean(error.unset, variables) if error.unset else ""
        raise layerfile.text.error(
            error.message,
            word.line,
            column=word.column + error.offset,
            width=max(1, len(word.raw) - error.offset),
            hint=hint,
        ) from error


def expand_heredoc(
    layerfile: Layerfile, instruction: Instruction, heredoc: Heredoc, variables: Mapping[str, str]
) -> bytes:
    """A heredoc's content for COPY and ADD: variables put in unless its delimiter is quoted; raises LayerfileError.

    Escapes are taken away from an unquoted one as BuildKit does, always with a backslash.
    """
    text = heredoc.content
    if heredoc.expand:
        try:
            text = substitute(text, variables, "\\", quotes=False).text
        except SubstitutionError as error:
            line = text.count("\n", 0, error.offset) + 1
            hint = f"quote the delimiter, <<'{heredoc.name}', if the text holds no variables"
            message = f"{error.message} (line {line} of the heredoc {heredoc.name})"
            raise error_in(layerfile, instruction, message, hint=hint) from error
    return text.encode("utf-8")
