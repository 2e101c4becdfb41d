"""Tokens of a model: their bytes, their spellings of texts, and the markers among them.

Names are imported at their first use: the pieces of one answer need neither numpy nor a tokenizer.
"""

from dlm.grammar.lazy import homes, lazily

__getattr__ = lazily(
    __name__,
    homes(
        {
            "markers": "Marker Reasoning",
            "pieces": """CallMarkers GemmaMarkers Markers MistralListMarkers MistralMarkers
            TokenPieces VocabularySlice""",
            "quoted": "QuotedTokens",
            "spelling": "common_prefix",
            "vocabulary": "CALL THOUGHT Vocabulary",
        }
    ),
)
