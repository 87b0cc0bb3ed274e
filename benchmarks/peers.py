"""The samplers that Nalar is measured against: a function from a row to the microseconds of processor time that one draw takes, or
None if the peer is not installed."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import nalar
from nalar import stages

Peer = Callable[[Any], float]


def transformers(text: str, seen: list[int]) -> Peer | None:
    """transformers' processors for the chain ``text``, then softmax and multinomial, or argmax, on one thread."""
    try:
        import torch
        from transformers.generation import logits_process as processors
    except ImportError:
        return None
    torch.set_num_threads(1)
    chain = nalar.Chain.parse(text)
    makers: dict[type, Callable[[Any], Any]] = {
        stages.Temperature: lambda stage: processors.TemperatureLogitsWarper(stage.value),
        stages.TopK: lambda stage: processors.TopKLogitsWarper(stage.k),
        stages.TopP: lambda stage: processors.TopPLogitsWarper(stage.p),
        stages.MinP: lambda stage: processors.MinPLogitsWarper(stage.p),
        stages.Repetition: lambda stage: processors.RepetitionPenaltyLogitsProcessor(stage.value),
    }
    greedy = any(isinstance(stage, stages.Temperature) and stage.value == 0 for stage in chain)
    steps = [] if greedy else [makers[type(stage)](stage) for stage in chain]
    ids = torch.tensor([seen or [0]])

    def draw(row: Any) -> float:
        given = torch.from_numpy(row)[None]
        start = time.thread_time_ns()
        for step in steps:
            given = step(ids, given)
        token = given.argmax(-1) if greedy else torch.multinomial(torch.softmax(given, -1), 1)
        int(token)
        return 1e-3 * (time.thread_time_ns() - start)

    return draw


def llama_cpp(text: str, seen: list[int], vocabulary: int) -> Peer | None:
    """llama.cpp's chain through its C functions; its array of candidates is filled before the clock starts."""
    try:
        import llama_cpp as lib
    except ImportError:
        return None
    sampler = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
    greedy = False
    for stage in nalar.Chain.parse(text):
        if isinstance(stage, stages.Temperature) and stage.value == 0:
            greedy = True
        elif isinstance(stage, stages.Temperature):
            lib.llama_sampler_chain_add(sampler, lib.llama_sampler_init_temp(stage.value))
        elif isinstance(stage, stages.TopK):
            lib.llama_sampler_chain_add(sampler, lib.llama_sampler_init_top_k(stage.k))
        elif isinstance(stage, stages.TopP):
            lib.llama_sampler_chain_add(sampler, lib.llama_sampler_init_top_p(stage.p, 1))
        elif isinstance(stage, stages.MinP):
            lib.llama_sampler_chain_add(sampler, lib.llama_sampler_init_min_p(stage.p, 1))
        elif isinstance(stage, stages.Repetition):
            lib.llama_sampler_chain_add(sampler, lib.llama_sampler_init_penalties(vocabulary, len(seen), stage.value, 0.0, 0.0))
    lib.llama_sampler_chain_add(sampler, lib.llama_sampler_init_greedy() if greedy else lib.llama_sampler_init_dist(7))
    for token in seen:
        lib.llama_sampler_accept(sampler, token)
    table = np.zeros(vocabulary, [("id", np.int32), ("logit", np.float32), ("p", np.float32)])
    pointer = table.ctypes.data_as(ctypes.POINTER(lib.llama_token_data))

    def draw(row: Any) -> float:
        table["id"], table["logit"], table["p"] = np.arange(vocabulary), row, 0
        array = lib.llama_token_data_array(pointer, vocabulary, -1, False)
        start = time.thread_time_ns()
        lib.llama_sampler_apply(sampler, ctypes.byref(array))
        int(array.data[array.selected].id)
        return 1e-3 * (time.thread_time_ns() - start)

    return draw
