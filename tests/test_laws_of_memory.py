"""The laws about what is kept, and what is left alone: inputs, histories, samplers, and the rows beside a broken one."""

from __future__ import annotations
