"""The only thing that crosses between the lab and a worker: frames of JSON, each with its length in front.

No pickle in either direction. A frame is read up to a size given by the reader, and anything that is not finite,
well-formed JSON of an object is a ProtocolError: the other side may be hostile. Loaded on both sides, so it imports
nothing of the project.
"""

import os
import struct
from json import dumps, loads  # by name: code in a worker may replace what the json module holds

LENGTH = struct.Struct(">I")
CHUNK = 1 << 16


class ProtocolError(Exception):
    """What arrived is not a frame. The stream cannot be used any more."""


class FrameReader:
    """Puts frames together from pieces as they arrive: `feed` what was read, `take` what is complete."""

    def __init__(self, max_bytes):
        self._max_bytes, self._pieces, self._size, self._length = max_bytes, [], 0, None

    def feed(self, piece):
        """Take in bytes as they came, in pieces of any size."""
        self._pieces.append(piece)
        self._size += len(piece)

    def take(self):
        """The next message, or None if it is not complete yet."""
        if self._length is None and self._size >= LENGTH.size:
            self._length = checked_length(self._cut(LENGTH.size), self._max_bytes)
        if self._length is None or self._size < self._length:
            return None
        body, self._length = self._cut(self._length), None
        return decode_body(body)

    def _cut(self, count):
        whole = b"".join(self._pieces)
        self._pieces, self._size = [whole[count:]], len(whole) - count
        return whole[:count]


def encode_frame(message):
    """Bytes ready to be written. Numpy and tensor values go as Python's; anything else that is not JSON is a TypeError."""
    body = dumps(message, allow_nan=False, separators=(",", ":"), default=_as_python).encode("ascii")
    return LENGTH.pack(len(body)) + body


def checked_length(header, max_bytes):
    """The body's length from a frame's header; ProtocolError above the limit."""
    (length,) = LENGTH.unpack(header)
    if length > max_bytes:
        raise ProtocolError(f"the reply claims {length:,} bytes; at most {max_bytes:,} are accepted")
    return length


def decode_body(body):
    """The object in a frame's body; ProtocolError for what is not strict JSON."""
    try:
        message = loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"the reply is not plain JSON ({error})") from None
    if not isinstance(message, dict):
        raise ProtocolError("the reply is not a JSON object")
    return message


def read_frame(fd, max_bytes):
    """The next message, or None at the end of the stream. Blocks."""
    header = _read_exactly(fd, LENGTH.size)
    if header is None:
        return None
    body = _read_exactly(fd, checked_length(header, max_bytes))
    return None if body is None else decode_body(body)


def write_frame(fd, message):
    """Write a message as one frame; blocks while the pipe is full."""
    write_all(fd, encode_frame(message))


def write_all(fd, data):
    """`os.write` until everything is written."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def _read_exactly(fd, count):
    parts = []
    while count:
        part = os.read(fd, min(count, CHUNK))
        if not part:
            return None
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def _refuse_constant(name):
    raise ValueError(f"{name} is not JSON")


def _as_python(value):
    if callable(getattr(value, "tolist", None)):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} is not JSON")
