"""The only thing that crosses between the lab and a worker: frames of JSON, each with its length in front.

No pickle in either direction. A frame is read up to a size given by the reader, and anything that is not finite,
well-formed JSON of an object is a ProtocolError: the other side may be hostile. Loaded on both sides, so it imports
nothing of the project.
"""

import json
import os
import struct

LENGTH = struct.Struct(">I")
CHUNK = 1 << 16


class ProtocolError(Exception):
    """What arrived is not a frame. The stream cannot be used any more."""


def encode_frame(message):
    body = json.dumps(message, allow_nan=False, separators=(",", ":")).encode("ascii")
    return LENGTH.pack(len(body)) + body


def decode_body(body):
    try:
        message = json.loads(body, parse_constant=_refuse_constant)
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
    (length,) = LENGTH.unpack(header)
    if length > max_bytes:
        raise ProtocolError(f"the reply claims {length:,} bytes; at most {max_bytes:,} are accepted")
    body = _read_exactly(fd, length)
    return None if body is None else decode_body(body)


def write_frame(fd, message):
    rest = memoryview(encode_frame(message))
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
