"""The one door to llama-cpp-python's low-level functions: imported quietly, its log sent to ``logging``.

Everything here is process-wide, because llama.cpp's log callback is: it is set once, when this module is imported.
"""

from __future__ import annotations

import logging
import os
from typing import Any

from nalar.errors import EngineError, MissingPackage

__all__ = ["library", "log"]

LOGGER = logging.getLogger("nalar.llama_cpp")
LOGGER.addHandler(logging.NullHandler())  # without a handler, `logging` itself would print warnings to stderr

# A failed assertion in ggml otherwise starts a debugger on this very process; it reads the variable when it fails.
os.environ.setdefault("GGML_NO_BACKTRACE", "1")

try:
    import llama_cpp.llama_cpp as library
except ImportError:
    raise MissingPackage("this model needs llama-cpp-python, which is not installed: pip install 'nalar[llama]'") from None
except (OSError, RuntimeError) as problem:  # the package is there, its shared library does not load
    raise EngineError(f"llama-cpp-python could not load its library: {' '.join(str(problem).split())}") from None

ERROR, CONTINUES = 4, 5  # ggml_log_level; the table in llama-cpp-python's own _logger.py is of an older one
# llama.cpp's "info" is over a thousand lines a model: for us that is debugging.
LEVELS = {1: logging.DEBUG, 2: logging.DEBUG, 3: logging.WARNING, ERROR: logging.ERROR}


class Log:
    """llama.cpp's log, joined into whole lines; an error's text is kept because its functions return no reason."""

    def __init__(self) -> None:
        self._error = ""
        self._line, self._level = "", 1

    def write(self, level: int, text: bytes, unused: Any = None) -> None:
        """Take one fragment.  llama.cpp calls it from C, where an exception would only be printed: it raises none."""
        del unused
        if level != CONTINUES:
            self._end_line()
            self._level = level
        self._line += (text or b"").decode("utf-8", "replace")
        if self._line.endswith("\n"):
            self._end_line()

    def take_error(self, otherwise: str) -> str:
        """The first error line since the last call, or ``otherwise``; the lines after it only say that something failed."""
        reason, self._error = self._error, ""
        return reason or otherwise

    def _end_line(self) -> None:
        line, self._line = " ".join(self._line.split()), ""  # some fragments hold several lines
        if not line:
            return
        if self._level == ERROR:
            self._error = self._error or line
        LOGGER.log(LEVELS.get(self._level, logging.DEBUG), "%s", line)


log = Log()
# C keeps only the address: were this object collected, the next line of log would crash the process.
LOG_CALLBACK = library.llama_log_callback(log.write)
library.llama_log_set(LOG_CALLBACK, None)
library.llama_backend_init()
