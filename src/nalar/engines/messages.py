"""What a conversation must look like before any engine renders it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nalar.engines.base import Message
from nalar.errors import InvalidType, InvalidValue

__all__ = ["ROLES", "check_messages"]

ROLES = ("system", "user", "assistant")


def check_messages(messages: Sequence[Message], roles: tuple[str, ...] = ROLES) -> list[Message]:
    """The same messages as a list, or an error that names the message at fault.

    >>> check_messages([{"role": "user", "content": "Hi"}])
    [{'role': 'user', 'content': 'Hi'}]
    """
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise InvalidType(f"messages must be a list of {{'role': …, 'content': …}}, got {messages!r}")
    if not messages:
        raise InvalidValue("messages must hold at least one message, got []")
    for place, message in enumerate(messages):
        _check(place, message, roles)
    return list(messages)


def _check(place: int, message: object, roles: tuple[str, ...]) -> None:
    """One message: a role we know and a text, nothing else."""
    if not isinstance(message, Mapping):
        raise InvalidType(f"messages[{place}] must be a mapping with role and content, got {message!r:.80}")
    if set(message) != {"role", "content"}:
        raise InvalidValue(f"messages[{place}] must have exactly the keys role and content, got {list(message)}")
    for key, value in message.items():
        if not isinstance(value, str):
            raise InvalidType(f"messages[{place}]['{key}'] must be a string, got {value!r:.80}")
    try:
        message["content"].encode()
    except UnicodeEncodeError:
        raise InvalidValue(f"messages[{place}]['content'] must be text that UTF-8 can encode, got {message['content']!r:.80}") from None
    if message["role"] not in roles:
        raise InvalidValue(f"messages[{place}]['role'] must be one of {', '.join(roles)}, got {message['role']!r}")
