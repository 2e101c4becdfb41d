"""Which tokens of a vocabulary can end the key of a JSON object. Knows no grammar."""

from collections.abc import Sequence


class QuotedTokens:
    """The tokens of a vocabulary that hold a double quote, by what they can say of a key, and those
    that hold a comma or a backslash."""

    def __init__(self, pieces: Sequence[bytes]):
        self.pieces = {token: piece for token, piece in enumerate(pieces) if b'"' in piece}
        self.commas = {token for token, piece in enumerate(pieces) if b"," in piece}
        self.escapes = {token for token, piece in enumerate(pieces) if b"\\" in piece}
        self.joining = {  # they can end a string and go on to the next key
            t for t, piece in self.pieces.items() if t in self.commas or piece.count(b'"') > 1
        }
        self.odd = [  # an escape may spell any key, and three quotes end one and hold another
            t for t, piece in self.pieces.items() if b"\\u" in piece or piece.count(b'"') > 2
        ]
        self.escaping = self.escapes & self.pieces.keys()
        self.ending: dict[bytes, list[int]] = {}  # by what comes before the first quote
        self.whole: dict[bytes, list[int]] = {}  # by what two quotes enclose
        for token, piece in self.pieces.items():
            first, *enclosed, _ = piece.split(b'"')
            self.ending.setdefault(first, []).append(token)
            for each in enclosed:
                self.whole.setdefault(each, []).append(token)
