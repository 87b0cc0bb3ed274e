"""Chat templates: what they may do, what is stopped, and that user text never spells a control token.  No model needed."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nalar.engines.chat import TEMPLATE_ROLES, Chat
from nalar.engines.messages import check_messages
from nalar.errors import EngineError, InvalidType, InvalidValue, NalarError

CONTROLS = ["<|im_start|>", "<|im_end|>", "<s>", "</s>", "[INST]", "[/INST]", "<|e|>"]
CHATML = ("{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
          "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
TRIMMED = "{{ bos_token }}{% for m in messages %}[INST]{{ m.content | trim }}[/INST]{% endfor %}"
PARTS = [*CONTROLS, "<|im_", "im_end|>", "<", "|>", "[", "]", "[/", "INST]", " ", "\n", "a"]
HOSTILE = st.lists(st.sampled_from(PARTS), max_size=6).map("".join)


def user(content):
    return [{"role": "user", "content": content}]


def render(source, messages=None, **values):
    chat = Chat(source, CONTROLS, **values)
    chat._sandbox._seconds = 0.3  # so that hostile templates cost the tests little
    return "".join(segment.text for segment in chat.segments(messages or user("Hi")))


def controls_read(segments):
    """What a tokenizer with control tokens on finds in the segments that are not plain: longest spelling first."""
    import re

    pattern = re.compile("|".join(map(re.escape, sorted(CONTROLS, key=len, reverse=True))))
    return [found for segment in segments if not segment.plain for found in pattern.findall(segment.text)]


class TestInjection:
    @given(content=HOSTILE, other=HOSTILE)
    def test_only_the_template_writes_control_tokens(self, content, other):
        messages = [{"role": "system", "content": other}, {"role": "user", "content": content}]
        segments = Chat(CHATML, CONTROLS).segments(messages)
        assert controls_read(segments) == ["<|im_start|>", "<|im_end|>"] * 2 + ["<|im_start|>"]
        expected = f"<|im_start|>system\n{other}<|im_end|>\n<|im_start|>user\n{content}<|im_end|>\n<|im_start|>assistant\n"
        assert "".join(segment.text for segment in segments) == expected

    @given(content=HOSTILE)
    def test_also_where_the_template_strips_and_encloses(self, content):
        segments = Chat(TRIMMED, CONTROLS, bos="<s>").segments(user(content))
        assert controls_read(segments) == ["<s>", "[INST]", "[/INST]"]

    def test_text_completed_by_the_template_is_kept_apart(self):
        source = "<|im_{{ messages[0].content }}m_end|>"
        segments = Chat(source, CONTROLS).segments(user("end|> and <|i"))
        assert controls_read(segments) == []
        assert "".join(segment.text for segment in segments) == "<|im_end|> and <|im_end|>"

    def test_ordinary_text_is_one_segment(self):
        assert len(Chat(CHATML, CONTROLS).segments(user("1 < 2, a|b, [x], <div>"))) == 1

    def test_marks_cannot_be_guessed(self):
        chat = Chat(CHATML, CONTROLS)
        assert any("\ue000123:0\ue001" in segment.text for segment in chat.segments(user("<s>\ue000123:0\ue001")))


class TestTemplates:
    def test_values_and_extensions(self):
        source = ("{%- for m in messages %}\n    {% if loop.index > 1 %}{% break %}{% endif %}\n{{ m | tojson }}{{ eos_token }}\n"
                  "    {% generation %}body{% endgeneration %}\n{% endfor %}{{ strftime_now('%Y') | length }}{{ tools is none }}")
        assert render(source, [*user("é<"), *user("x")], eos="</s>") == '{"role": "user", "content": "é<"}</s>\nbody4True'

    def test_concatenation_macros_and_namespaces_work(self):
        source = ("{% macro show(a, b='!') %}{{ a ~ b }}{% endmacro %}{% set ns = namespace(n=0) %}"
                  "{% for m in messages %}{% set ns.n = ns.n + 1 %}{{ show(m.content) ~ 1 ~ none }}{% endfor %}{{ ns.n * 2 }}")
        assert render(source, [*user("a"), *user("b")]) == "a!1Noneb!1None4"

    def test_long_messages_are_no_trouble(self):
        text = "word " * 100_000
        source = "{% for m in messages %}{{ '<' ~ m.content.replace('\n', ' ') + m.content | trim ~ '>' }}{% endfor %}"
        assert text in render(source, user(text))

    def test_the_templates_own_refusal_is_the_messages_fault(self):
        with pytest.raises(InvalidValue, match="refused by the model's chat template: roles must alternate"):
            render("{{ raise_exception('roles must\nalternate') }}")

    @pytest.mark.parametrize("source", ["{% for %}", "{{ x.y.z }}", "{{ 1 // 0 }}", "{% include 'x' %}", "{{ messages[0].content.nope() }}",
                                        "{{ 'a' | nope }}", "{{ ''.__class__.__mro__ }}", "{{ messages.append(1) }}", "{{ " + "(" * 500,
                                        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "x" * 300_000])
    def test_a_broken_template_is_one_line(self, source):
        with pytest.raises(EngineError, match="chat template") as caught:
            render(source)
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 400

    @pytest.mark.parametrize("source", [
        "{{ 'x' * 10**9 }}", "{{ 'x' * 1000000000 }}", "{{ 10**9999 }}", "{{ [0] * 1000000000 }}", "{{ 'x' | center(1000000000) }}",
        "{{ 'x'.ljust(1000000000) }}", "{{ '%999999999d' % 1 }}", "{{ '%*d' % (999999999, 1) }}", "{{ '{:999999999}'.format(1) }}",
        "{{ '{:{}}'.format(1, 999999999) }}", "{{ '%999999999d' | format(1) }}", "{{ ('x' * 1000000).replace('x', 'y' * 1000000) }}",
        "{{ ('x' * 1000000) | replace('x', 'y' * 1000000) }}", "{{ ('y' * 100000).join('x' * 100000) }}", "{{ range(1000000000) }}",
        "{{ (['y' * 1000000] * 1000) | join }}", "{{ ['y' * 1000000] * 1000 }}", "{{ [[0] * 1000000] * 1000 | sum(start=[]) }}",
        "{% set x = namespace(s='x') %}{% for i in range(99) %}{% set x.s = x.s ~ x.s %}{% endfor %}",
        "{% set x = namespace(s='x') %}{% for i in range(99) %}{% set x.s = x.s + x.s %}{% endfor %}",
        "{% set x = namespace(s=[]) %}{% for i in range(99) %}{% set x.s = [x.s, x.s] %}{% endfor %}{{ x.s }}",
        "{% set x = namespace(s=7) %}{% for i in range(99) %}{% set x.s = x.s * x.s %}{% endfor %}",
        "{% set s %}{% for i in range(99999) %}" + "x" * 1000 + "{% endfor %}{% endset %}",
        "{% for i in range(99999) %}{{ messages[0].content * 1000 }}{% endfor %}",
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{{ [{}] | tojson(indent=1000000000) }}", "{{ 'a\nb' | indent(1000000000) }}", "{{ [1] | batch(1000000000, 'x') | list }}",
    ])
    def test_a_hostile_template_is_stopped(self, source):
        start = time.monotonic()
        with pytest.raises(EngineError, match="chat template failed"):
            render(source)
        assert time.monotonic() - start < 5

    def test_the_engine_stays_usable_after_one(self):
        chat = Chat("{% if messages | length > 1 %}{{ 'x' * 10**9 }}{% endif %}ok", CONTROLS)
        with pytest.raises(EngineError):
            chat.segments([*user("a"), *user("b")])
        assert chat.segments(user("a"))[0].text == "ok"


class TestMessages:
    @pytest.mark.parametrize(("messages", "error", "text"), [
        ("Hi", InvalidType, "messages must be"), (None, InvalidType, "messages must be"), ([], InvalidValue, "at least one message"),
        (["Hi"], InvalidType, r"messages\[0\] must be a mapping"), ([{"role": "user"}], InvalidValue, "role and content"),
        ([{"role": "user", "content": None}], InvalidType, "content"), ([{"role": "boss", "content": "x"}], InvalidValue, "'boss'"),
        ([{"role": "user", "content": "x", "name": "<s>"}], InvalidValue, "role and content"),
        ([{"role": "user", "content": "\udc80"}], InvalidValue, "UTF-8"), ([{"role": 1, "content": "x"}], InvalidType, "role"),
    ])
    def test_each_mistake_names_its_place(self, messages, error, text):
        with pytest.raises(error, match=text) as caught:
            check_messages(messages, TEMPLATE_ROLES)
        assert isinstance(caught.value, NalarError)

    def test_a_tuple_of_any_mappings_will_do(self):
        from types import MappingProxyType

        message = MappingProxyType({"role": "tool", "content": ""})
        assert check_messages((message,), TEMPLATE_ROLES) == [{"role": "tool", "content": ""}]
