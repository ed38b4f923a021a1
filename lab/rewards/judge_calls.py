"""The judge's helper process: makes the calls and writes what came back. Runs as a script, with httpx and no lock.

Standard input: {"url", "key", "bodies", "parallel", "timeout", "tries", "proxies"}; standard output: one {"text"} or
{"error"} for each body. The key is read from there, so that it stands on no command line.
"""

import asyncio
import json
import sys

AGAIN = {408, 409, 425, 429, 500, 502, 503, 504}  # a later try may go through
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 8.0  # seconds, unless the server says how long
LONGEST_REPLY = 200_000  # characters that are kept


def main():
    """Reads one job as JSON from standard input and writes the replies, in order, as JSON to standard output."""
    job = json.loads(sys.stdin.buffer.read())
    sys.stdout.write(json.dumps(asyncio.run(all_calls(job))))


async def all_calls(job):
    """The replies to all prompts of a job, in order, at most `parallel` requests at a time: {text} or {error}."""
    import httpx

    headers = {"authorization": f"Bearer {job['key']}"} if job["key"] else {}
    turn = asyncio.Semaphore(job["parallel"])
    async with httpx.AsyncClient(headers=headers, timeout=job["timeout"], trust_env=job["proxies"]) as client:

        async def one(body):
            async with turn:
                return await ask(client, job, body)

        return await asyncio.gather(*map(one, job["bodies"]))


async def ask(client, job, body):
    """{"text": reply}, or {"error": sentence} after the last try."""
    import httpx

    said = ""
    for number in range(job["tries"]):
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2**number)
        try:
            async with asyncio.timeout(job["timeout"]):  # httpx's own limit is between two pieces of an answer
                answer = await client.post(job["url"], json=body)
        except (TimeoutError, httpx.TimeoutException):
            said = f"no answer within {job['timeout']:g} s"
        except httpx.HTTPError as error:
            said = f"{type(error).__name__}: {error}".rstrip(": ")
        else:
            if answer.status_code == 200:
                return read(answer)
            said = f"HTTP {answer.status_code}, {answer.text.strip()[:200] or 'without a word'}"
            if answer.status_code not in AGAIN:
                hint = " Set GRPO_LAB_JUDGE_KEY to its key." if answer.status_code in (401, 403) else ""
                return {"error": f"{said}.{hint}"}
            pause = min(LONGEST_PAUSE, asked_pause(answer, pause))
        if number + 1 < job["tries"]:
            await asyncio.sleep(pause)
    return {"error": f"{said}, in each of {job['tries']} tries." if job["tries"] > 1 else f"{said}."}


def asked_pause(answer, pause):
    """Seconds to wait before another try: what the server asks for in `retry-after`, else `pause`."""
    try:
        return max(0.0, float(answer.headers["retry-after"]))
    except (KeyError, ValueError):
        return pause


def read(answer):
    """{text} of an answer in OpenAI's form, or {error} in a sentence."""
    try:
        text = answer.json()["choices"][0]["message"]["content"]
    except (ValueError, LookupError, TypeError):
        return {"error": f"its answer is not OpenAI's form: {answer.text.strip()[:200]}."}
    return {"text": str(text or "")[:LONGEST_REPLY]}


if __name__ == "__main__":
    main()
