"""Text: tokens to text and back, and stop strings; in `chat_template`, messages to text.

Knows `tokenizers` and jinja, no model and no engine. Chat templates stay in their module, because jinja takes a tenth
of a second to import.
"""

from chatserve.text.detokenizer import Detokenizer
from chatserve.text.grammar import Grammar
from chatserve.text.stops import StopHolder, StopMatcher, find_stop
from chatserve.text.text_stream import TextStream, final_text
from chatserve.text.vocabulary import Vocabulary

__all__ = [
    "Detokenizer",
    "Grammar",
    "StopHolder",
    "StopMatcher",
    "TextStream",
    "Vocabulary",
    "final_text",
    "find_stop",
]
