"""The Layerfile's front end: bytes to a typed tree, without any IO. Imported by build/ and the command line.

lexer (logical lines) → statement (keyword, flags, words) → read_* (nodes) → parser (stages). `substitute` puts
variables in later, when the values are known.
"""

from layerkit.build.layerfile.nodes import Layerfile, Stage
from layerkit.build.layerfile.parser import KEYWORDS, parse_layerfile

__all__ = ["KEYWORDS", "Layerfile", "Stage", "parse_layerfile"]
