"""Text: tokens to text and back, stop strings, chat templates. Knows `tokenizers` and jinja, no model and no engine."""

from chatserve.text.chat_template import ChatTemplate
from chatserve.text.detokenizer import Detokenizer
from chatserve.text.stops import StopHolder, StopMatcher, find_stop
from chatserve.text.text_stream import TextStream, final_text
from chatserve.text.vocabulary import Vocabulary

__all__ = [
    "ChatTemplate",
    "Detokenizer",
    "StopHolder",
    "StopMatcher",
    "TextStream",
    "Vocabulary",
    "final_text",
    "find_stop",
]
