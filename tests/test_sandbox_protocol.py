"""Frames between lab and worker, replies that are looked at again, and the quiet event loop."""

# ruff: noqa: E501  (tables of source text)

import asyncio
import json
import sys
from pathlib import Path

import pytest

from lab.rewards.sandbox import RewardError
from lab.rewards.sandbox.protocol import FrameReader, ProtocolError, decode_body, encode_frame
from lab.rewards.sandbox.results import checked_reply


def test_frames_are_put_together_from_any_pieces():
    messages = [{"n": number, "text": "é" * number} for number in range(30)]
    stream = b"".join(map(encode_frame, messages))
    for size in (1, 3, 7, 1000, len(stream)):
        reader, found = FrameReader(1 << 20), []
        for start in range(0, len(stream), size):
            reader.feed(stream[start : start + size])
            while (message := reader.take()) is not None:
                found.append(message)
        assert found == messages


@pytest.mark.parametrize("body", [b"[1]", b"3", b"{", b"", b"\xff\xfe", b'{"a": Infinity}', b'{"a": -Infinity}', b"{'a': 1}",
                                  b"[" * 200_000, b'{"a":' * 200_000, b'{"a": ' + b"9" * 5000 + b"}"])
def test_a_body_that_is_not_a_plain_json_object_is_refused(body):
    with pytest.raises(ProtocolError):
        decode_body(body)


@pytest.mark.parametrize("reply", [
    {}, {"scores": [1.0], "extra": {}, "metrics": {}}, {"scores": [1.0, "2"], "extra": {}, "metrics": {}},
    {"scores": [1.0, True], "extra": {}, "metrics": {}}, {"scores": [1.0, 10**400], "extra": {}, "metrics": {}},
    {"scores": {"0": 1}, "extra": {}, "metrics": {}}, {"scores": [1, 2], "extra": [], "metrics": {}},
    {"scores": [1, 2], "extra": {"x": [1]}, "metrics": {}}, {"scores": [1, 2], "extra": {"x": [[1], 2]}, "metrics": {}},
    {"scores": [1, 2], "extra": {}, "metrics": {"x": "1"}}, {"scores": [1, 2], "extra": {}, "metrics": None},
    json.loads('{"scores": [1, 1e999], "extra": {}, "metrics": {}}'),
])
def test_a_reply_is_looked_at_again_value_by_value(reply):
    with pytest.raises(RewardError) as caught:
        checked_reply(reply, ["ten", "twenty"])
    assert caught.value.kind == "protocol"


def test_a_coroutine_outside_the_sandbox_gives_the_same():
    """The quiet loop is an ordinary event loop but for what it watches."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "lab/rewards/sandbox"))
    try:
        import quiet_loop
    finally:
        del sys.path[0]

    async def work():
        queue = asyncio.Queue()
        task = asyncio.create_task(queue.put(3))
        value = await queue.get()
        await task
        return value

    assert quiet_loop.run(work()) == 3
