"""The tokens of a GGUF file: text to ids through llama.cpp's tokenizer, ids to bytes through a table made once."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

from nalar.engines.base import Message
from nalar.engines.chat import Chat
from nalar.engines.llama_library import library
from nalar.engines.llama_model import Model, read_text
from nalar.errors import EngineError, InvalidType, InvalidValue

__all__ = ["GgufVocabulary", "without_padding"]

UNUSED = 2  # llama_token_attr: an id that fills the table up to a round number
CONTROL = 1 | 8  # unknown and control: what llama.cpp's tokenizer finds in text only when told to


@dataclass(frozen=True, slots=True)
class _Tables:
    """What is read from the file once."""

    attributes: list[int]
    pieces: list[bytes]
    ends: list[int]
    controls: dict[str, int]  # control tokens by their spelling
    bos: int | None  # the id that begins every text, where the model wants one


class GgufVocabulary:
    """``size`` ids without padding; ``ends`` are all ids that end a reply, not the one called eos; see ``base.Vocabulary``.

    Tokens that the file declares as *user defined* are ordinary text to llama.cpp and found in any text.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        with model.borrow() as pointer:
            vocabulary = library.llama_model_get_vocab(pointer)
            tables = _read_tables(vocabulary)
            names = {"bos": _spelling(vocabulary, library.llama_vocab_bos(vocabulary)),
                     "eos": _spelling(vocabulary, library.llama_vocab_eos(vocabulary))}
        self.size = without_padding(tables.attributes)
        self.pieces = tuple(tables.pieces[: self.size])
        self.ends = frozenset(token for token in tables.ends if token < self.size)
        self.chat_template = model.chat_template()
        self.begin: tuple[int, ...] = () if tables.bos is None else (tables.bos,)
        self.controls = {name: token for name, token in tables.controls.items() if token < self.size}
        self._chat = Chat(self.chat_template, list(tables.controls), **names) if self.chat_template else None

    def encode(self, text: str) -> list[int]:
        """The ids of ``text``, wherever it stands: without ``begin``.  Control tokens are never read
        out of the text.  Bytes for which the model has no token are dropped, as llama.cpp does (SmolLM2 has none for F1, F2
        and six control characters).  Raises ``InvalidType`` or ``InvalidValue`` (text that UTF-8 cannot encode)."""
        if not isinstance(text, str):
            raise InvalidType(f"text must be a string, got {text!r:.80}")
        return self._tokenize(text, control=False)

    def encode_chat(self, messages: list[Message]) -> list[int]:
        """The ids of a conversation up to the reply; control tokens come from the template alone.

        Text that spells one is tokenised apart; a SentencePiece model may then see a space more at the seam.

        Raises ``InvalidValue`` or ``InvalidType`` for messages that are not ones, ``EngineError`` without a usable template.
        """
        if self._chat is None:
            raise EngineError("this model's file has no chat template: give a plain prompt instead of messages")
        ids: list[int] = []
        for segment in self._chat.segments(messages):
            ids += self._tokenize(segment.text, control=not segment.plain)
        return self._with_bos(ids)

    def _with_bos(self, ids: list[int]) -> list[int]:
        # By hand: a template may have written it already, and llama.cpp's own flag would also append an end token.
        return ids if ids[: len(self.begin)] == list(self.begin) else [*self.begin, *ids]

    def _tokenize(self, text: str, control: bool) -> list[int]:
        try:
            data = text.encode()
        except UnicodeEncodeError as problem:
            raise InvalidValue(f"text must be text that UTF-8 can encode, got {text[problem.start]!r} at {problem.start}") from None
        with self._model.borrow() as pointer:
            vocabulary = library.llama_model_get_vocab(pointer)
            size = len(data) + 8
            while True:
                buffer = (library.llama_token * size)()
                count = library.llama_tokenize(vocabulary, data, len(data), buffer, size, False, control)
                if count >= 0:
                    return list(buffer[:count])
                size = -count


def without_padding(attributes: list[int]) -> int:
    """How many ids are left when trailing unused ones are dropped.

    >>> without_padding([8, 4, 2, 4, 2, 2])
    4
    """
    size = len(attributes)
    while size and attributes[size - 1] & UNUSED:
        size -= 1
    return size


def _read_tables(vocabulary: Any) -> _Tables:
    ids = range(library.llama_vocab_n_tokens(vocabulary))
    attributes = [int(library.llama_vocab_get_attr(vocabulary, token)) for token in ids]
    ends = [token for token in ids if library.llama_vocab_is_eog(vocabulary, token)]
    special = [token for token in ids if attributes[token] & CONTROL or token in ends]
    bos = int(library.llama_vocab_bos(vocabulary)) if library.llama_vocab_get_add_bos(vocabulary) else -1
    return _Tables(attributes, _read_pieces(vocabulary, len(ids), frozenset(special)), ends,
                   {_spelling(vocabulary, token): token for token in special}, None if bos < 0 else bos)


def _read_pieces(vocabulary: Any, size: int, special: frozenset[int]) -> list[bytes]:
    """The bytes of each id; one buffer serves all, but for the few ids longer than it."""
    room = 64
    buffer = ctypes.create_string_buffer(room)
    pieces = []
    for token in range(size):
        length = 0 if token in special else library.llama_token_to_piece(vocabulary, token, buffer, room, 0, False)
        pieces.append(buffer.raw[:length] if length >= 0 else _long_piece(vocabulary, token))
    return pieces


def _long_piece(vocabulary: Any, token: int) -> bytes:
    return read_text(lambda buffer, size: library.llama_token_to_piece(vocabulary, token, buffer, size, 0, False))


def _spelling(vocabulary: Any, token: int) -> str:
    """A token as text spells it; "" for the id −1, which means that the model has no such token."""
    text = library.llama_vocab_get_text(vocabulary, token) if token >= 0 else b""
    return (text or b"").decode("utf-8", "replace")
