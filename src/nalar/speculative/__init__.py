"""Speculative sampling: a draft may change how many tokens a step yields, never the law of the tokens."""

from nalar.speculative.lossy import lenient, relaxed, typical
from nalar.speculative.proposal import Proposal
from nalar.speculative.tree_verifier import Tree, TreeVerdict, verify_tree
from nalar.speculative.verdict import Verdict
from nalar.speculative.verifier import verify

__all__ = ["Proposal", "Tree", "TreeVerdict", "Verdict", "lenient", "relaxed", "typical", "verify", "verify_tree"]
