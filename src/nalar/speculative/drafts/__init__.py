"""Drafts: where proposals come from.  ``draft="suffix"``, ``draft="ngram"``, a source with options, or an object of your own."""

from __future__ import annotations

from typing import Any

from nalar.engines.base import Engine
from nalar.errors import InvalidType, InvalidValue
from nalar.speculative.drafts.base import Draft, DraftSource
from nalar.speculative.drafts.model import ModelDraft
from nalar.speculative.drafts.ngram import Ngram
from nalar.speculative.drafts.suffix import Suffix

__all__ = ["NAMES", "Draft", "DraftSource", "ModelDraft", "Ngram", "Suffix", "check_source"]

NAMES: dict[str, type[Ngram] | type[Suffix]] = {"ngram": Ngram, "suffix": Suffix}


def check_source(draft: Any, target: Engine) -> DraftSource | None:
    """The source that ``draft=`` names; None and "none" are no draft."""
    if draft is None or draft == "none":
        return None
    if isinstance(draft, str):
        if draft not in NAMES:
            raise InvalidValue(f"draft must be one of {', '.join(map(repr, ('none', *NAMES)))} or a draft source, got {draft!r}")
        draft = NAMES[draft]()
    if not isinstance(draft, DraftSource):
        raise InvalidType(f"draft must be a name or a draft source (see nalar.speculative.drafts), got {draft!r}")
    if not target.limits.can_truncate:
        raise InvalidValue("draft must be None for a model whose sequences cannot be cut back")
    return draft
