"""The nucleus's second try: how far down must one look?  A sample of the row answers.

Counts of sampled weights in quarter octaves, each standing for (row size / sample size) tokens, are added from the top down.  The look
ends where they cover the missing mass with two standard deviations to spare; or where they cover it by a third and a few hundred
tokens were passed (a few sampled weights far up make the deviation useless, and a try of that size is cheap); or where a list
would grow too long, if by then they cover the mass at all.  A try that falls short is followed by a deeper one.
"""

from __future__ import annotations

import math

import numpy as np

from nalar.kernels.blocks import block
from nalar.kernels.compiled import inner
from nalar.kernels.frame import BLOCKS, ROW_TOP, SIZE, SPARE_IDS, TOP, get, get_float
from nalar.kernels.lanes import get32, get_int, put_int
from nalar.kernels.scan import LOG2E, rate

BINS = 240  # sixty octaves, 41 nats
VECTORS = 160  # sixteen elements each
CROWD = 4096
CHEAP = 512  # tokens: a list of so many costs a few microseconds


@inner
def widened(f, bound, missing, attempt):
    """A lower bound down to which ``missing`` more weight (the maximum's is 1) probably lies; NaN if that is too much for a list."""
    sampled, bins = sample(f, bound), get(f, SPARE_IDS)
    factor = get(f, SIZE) / max(sampled, 1)
    top = float(get_float(f, ROW_TOP)) * rate(f)
    offset = 2.0 ** (top - get_float(f, TOP) * LOG2E)
    mass = variance = 0.0
    hits = 0
    for k in range(BINS):
        count = get_int(bins, k)
        weight = offset * 2.0 ** (-(k + 0.5) / 4) * factor
        mass += count * weight
        variance += count * weight * weight
        hits += count
        full = hits * factor > max(CROWD, get(f, SIZE) / 16)
        sure = mass - 2 * math.sqrt(variance) > missing
        if sure or (mass > missing * (4 / 3 + attempt) and hits * factor > CHEAP) or full:
            return np.float32((top - (k + 1) / 4) / rate(f)) if mass > missing else np.float32(math.nan)
    return np.float32(math.nan)


@inner
def sample(f, bound):
    """Count sampled elements below ``bound`` by how far their weight lies under the maximum's; how many were looked at."""
    bins, blocks, s, top = get(f, SPARE_IDS), get(f, BLOCKS), rate(f), float(get_float(f, ROW_TOP))
    for k in range(BINS):
        put_int(bins, k, np.int32(0))
    step, sampled = max(blocks // VECTORS, 1), 0
    for b in range(0, blocks, step):
        a = block(f, b)
        for j in range(16 * (b * 7 % 16), 16 * (b * 7 % 16) + 16):
            x = get32(a, j)
            k = (top - float(x)) * s * 4
            if x < bound and k < BINS:
                put_int(bins, np.int64(k), np.int32(get_int(bins, np.int64(k)) + 1))
        sampled += 16
    return sampled


