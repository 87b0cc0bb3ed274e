"""Speculative sampling: a draft may change how many tokens a step yields, never the law of the tokens."""
