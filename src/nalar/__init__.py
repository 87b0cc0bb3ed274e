"""Nalar, the sampling layer for language models: logits in, tokens out, by exactly the distribution that was asked for."""

from nalar.chain import Chain
from nalar.distribution import Distribution
from nalar.errors import NalarError
from nalar.history import History
from nalar.keys import Key
from nalar.model import load
from nalar.params import SamplingParams
from nalar.sampler import Sampler
from nalar.sampler_batch import step_batch
from nalar.sampling import sample, sample_batch
from nalar.speculative import Proposal, verify

__all__ = [
    "Chain", "Distribution", "History", "Key", "NalarError", "Proposal", "Sampler", "SamplingParams", "load", "sample", "sample_batch",
    "step_batch", "verify",
]
