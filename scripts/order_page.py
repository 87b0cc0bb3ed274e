"""Write docs/order.md from ``Chain.ORDER``; tests/test_pages.py fails when the two differ."""

from __future__ import annotations

from pathlib import Path

from nalar import Chain
from nalar.stages import BUILT_IN

PAGE = Path(__file__).resolve().parent.parent / "docs" / "order.md"

WHY = {  # stage: its parameter, and why it stands here
    "allow": ("allowed_tokens", "Hard masks come before anything that measures mass: a forbidden token must not use up room in a cut."),
    "ban": ("banned_tokens", "As above."),
    "min_tokens": ("min_tokens", "As above: an end that may not come yet must not use up room either."),
    "bias": ("logit_bias", "It speaks about the model's own logits, so it comes before anything scales them."),
    "repetition": ("repetition_penalty", "It scales a logit, so it comes before penalties that subtract and would change what is scaled."),
    "frequency": ("frequency_penalty", "In nats of the model's own logits, so before temperature: a hot reply is not penalised less."),
    "presence": ("presence_penalty", "As frequency; both only subtract, so their order does not matter."),
    "temperature": ("temperature", "Before all that measures mass: cuts see the probabilities that will be drawn from."),
    "top_k": ("top_k", "First of the cuts, because the cheapest: it leaves few tokens for the others to measure."),
    "top_p": ("top_p", "Of the mass that top-k left."),
    "min_p": ("min_p", "Last: it compares with the best token, which no cut removes, so the cuts before it do not change its verdict."),
}

HEAD = """\
# The order

This page is written by `make docs` from `Chain.ORDER`. Do not edit it by hand.

Stages act from left to right, and the order is part of the meaning. A chain you write yourself acts in the order you wrote.
Parameters have no order, so `Chain.from_params` gives them one, always the same, and leaves out what is neutral:

| | stage | class | parameter | why here |
| --- | --- | --- | --- | --- |
"""

FOOT = """
`str(chain)` prints the order a chain really has. There is no other place that knows one.

```python
import nalar

params = nalar.SamplingParams(top_p=0.95, top_k=40, temperature=0.8, repetition_penalty=1.1, banned_tokens=[3])
chain = nalar.Chain.from_params(params)
assert str(chain) == "ban([3]) | repetition(1.1) | temperature(0.8) | top_k(40) | top_p(0.95)"
```

## Where it matters

Temperature before a cut by mass lets more tokens in. After it, it only levels what was let in:

![Temperature 1.8 before top_p 0.5, and after it](pictures/order.svg)

```python
row = [2.0, 1.5, 0.3, -1.0]
first = nalar.Chain.parse("temperature(2.0) | top_p(0.8)").distribution(row)
last = nalar.Chain.parse("top_p(0.8) | temperature(2.0)").distribution(row)

assert first.ids.tolist() == [0, 1, 2]
assert last.ids.tolist() == [0, 1]
assert round(first.tv(last), 3) == 0.194        # a fifth of all draws would differ
```

With top-k the order does not matter, because temperature never reorders:

```python
first = nalar.Chain.parse("temperature(2.0) | top_k(2)").distribution(row)
last = nalar.Chain.parse("top_k(2) | temperature(2.0)").distribution(row)
assert first.tv(last) == 0
```

## Other engines

The order gives the same law as transformers' for the parameters both have. There masks come after repetition; that is the same law,
since a penalty acts on each logit by itself and a masked one stays masked. Two other things do differ: transformers keeps
every token equal to the k-th, here `top_k(k, ties="all")`, and its top-p takes equal tokens in no promised order.

Engines do disagree. mlx-lm applies temperature last; vLLM applies min-p first. When you bring settings from another
engine, write the chain down in that engine's order.
"""


def page(order: tuple[str, ...] = Chain.ORDER) -> str:
    """The page; a stage without its reason is an error."""
    return HEAD + "".join(line(place, name, *WHY[name]) for place, name in enumerate(order, 1)) + FOOT


def line(place: int, name: str, parameter: str, why: str) -> str:
    return f"| {place} | `{name}` | `stages.{BUILT_IN[name].__name__}` | `{parameter}` | {why} |\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(PAGE.parent.parent)}")
