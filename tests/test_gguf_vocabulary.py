"""SmolLM2's tokens: every byte of every id, every end id, and no control token out of text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llama_fixture import load_smollm2, loaded, needs_model
from nalar.engines.llama_library import library
from nalar.errors import EngineError, InvalidType, InvalidValue

pytestmark = needs_model
__all__ = ["loaded"]
CONTROLS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>", "<file_sep>", "<gh_stars>"]
WRITABLE = st.characters(min_codepoint=32, max_codepoint=0x3FFFF, exclude_categories=["Cs"])  # SmolLM2 has no token for the byte F1
HOSTILE = st.lists(st.sampled_from([*CONTROLS, "<|im_", "end|>", "<", "|>", "<|", "im_end", "\n", " ", "user", "Hi", "é", "😀", "\0"])
                   | st.text(WRITABLE, max_size=3), max_size=8).map("".join)


@pytest.fixture(scope="module")
def vocabulary(loaded):
    return loaded.engine.vocabulary


def text_of(vocabulary, ids):
    return b"".join(vocabulary.pieces[token] for token in ids)


def test_all_ends_not_only_the_one_called_eos(vocabulary):
    assert vocabulary.ends == {0, 2, 4}


def test_pieces_longer_than_the_usual_buffers_are_whole(vocabulary):
    assert vocabulary.size == len(vocabulary.pieces) == 49152
    long = [token for token, piece in enumerate(vocabulary.pieces) if len(piece) > 32]
    assert len(long) == 47
    assert max(len(vocabulary.pieces[token]) for token in long) > 64
    for token in long:
        assert vocabulary.encode(vocabulary.pieces[token].decode()) == [token]


def test_only_control_tokens_are_silent(vocabulary):
    assert [token for token, piece in enumerate(vocabulary.pieces) if not piece] == list(range(17))


@given(text=HOSTILE)
def test_text_comes_back_and_holds_no_control_token(vocabulary, text):
    ids = vocabulary.encode(text)
    assert text_of(vocabulary, ids) == text.encode()
    assert all(token > 16 for token in ids)


def test_bytes_without_a_token_are_dropped_as_llama_cpp_does(vocabulary):
    assert text_of(vocabulary, vocabulary.encode("a\x04b")) == b"ab"


def test_a_long_text_needs_no_second_thought(vocabulary):
    text = "x y " * 20_000
    assert text_of(vocabulary, vocabulary.encode(text)) == text.encode()


@pytest.mark.parametrize(("text", "error"), [(b"bytes", InvalidType), (None, InvalidType), ("lone \ud800", InvalidValue)])
def test_what_is_not_text_is_refused(vocabulary, text, error):
    with pytest.raises(error, match="text must be"):
        vocabulary.encode(text)


class TestChat:
    SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"

    def test_equals_llama_cpps_tokens(self, vocabulary):
        import llama_cpp.llama_chat_format as peer

        messages = [{"role": "system", "content": "Be  brief.\n"}, {"role": "user", "content": "Hi,\n\n 2 < 3?"},
                    {"role": "assistant", "content": "Yes."}, {"role": "user", "content": " Why"}]
        text = peer.Jinja2ChatFormatter(vocabulary.chat_template, "<|im_end|>", "<|im_start|>")(messages=messages).prompt
        ids = vocabulary.encode_chat(messages)
        assert ids == vocabulary._tokenize(text, control=True)
        assert ids[:2] == [1, 9690]

    @given(content=HOSTILE, system=HOSTILE)
    @settings(max_examples=150)
    def test_control_tokens_come_from_the_template_alone(self, vocabulary, content, system):
        messages = [{"role": "system", "content": system}, {"role": "user", "content": content}]
        ids = vocabulary.encode_chat(messages)
        assert [token for token in ids if token <= 16] == [1, 2, 1, 2, 1]
        expected = f"system\n{system}\nuser\n{content}\nassistant\n"
        assert text_of(vocabulary, ids) == expected.encode()

    def test_harmless_text_is_tokenised_in_one_go(self, vocabulary):
        ids = vocabulary.encode_chat([{"role": "user", "content": "\n a <b> |x|"}])
        text = f"<|im_start|>system\n{self.SYSTEM}<|im_end|>\n<|im_start|>user\n\n a <b> |x|<|im_end|>\n<|im_start|>assistant\n"
        assert ids == vocabulary._tokenize(text, control=True)

    def test_bos_is_never_doubled(self, vocabulary, monkeypatch):
        monkeypatch.setattr(vocabulary, "begin", (1,))  # as a model that wants one; SmolLM2's template writes the same id
        assert vocabulary.encode("Hi") == vocabulary._tokenize("Hi", control=False)
        assert 1 not in vocabulary.encode("<|im_start|>")
        assert vocabulary.encode_chat([{"role": "user", "content": "Hi"}])[:2] == [1, 9690]
        monkeypatch.setattr(vocabulary, "begin", (0,))
        assert vocabulary.encode_chat([{"role": "user", "content": "Hi"}])[:3] == [0, 1, 9690]
        assert vocabulary.encode("") == []

    def test_without_a_template_a_plain_prompt_is_asked_for(self, vocabulary, monkeypatch):
        monkeypatch.setattr(vocabulary, "_chat", None)
        with pytest.raises(EngineError, match="no chat template: give a plain prompt"):
            vocabulary.encode_chat([{"role": "user", "content": "Hi"}])


def test_metadata_longer_than_the_buffer_is_read_whole(loaded):
    from nalar.engines.llama_model import read_text

    with loaded.engine._model.borrow() as pointer:
        key = b"tokenizer.chat_template"
        value = read_text(lambda buffer, size: library.llama_model_meta_val_str(pointer, key, buffer, size), size=8)
    assert value.decode() == loaded.engine.vocabulary.chat_template


def test_the_vocabulary_outlives_a_forgotten_engine():
    vocabulary = load_smollm2(context=64, sequences=1).engine.vocabulary
    assert vocabulary.encode("Hi")
