"""A reward for staying in one language: share of the letters that are written in it.

Mathematics, code, tags and addresses are taken out first. Letters of a script that decides alone (Chinese, Thai, Tamil…)
are counted by script; Latin text is judged sentence by sentence by py3langid (BSD-3), or by lingua (Apache-2.0), limited to
the languages in question, which makes it both faster and surer. Malay and Indonesian are one language here unless
`strict`: short texts in them cannot be told apart reliably; of the two detectors lingua does it better.
"""

from __future__ import annotations

import copy
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

from lab.rewards.common import RewardFunction, builtin, check_choice, texts_of

MALAY = ("ms", "id")
SCRIPTS = {"CJK": "zh", "HIRAGANA": "ja", "KATAKANA": "ja", "HANGUL": "ko", "THAI": "th", "TAMIL": "ta", "ARABIC": "ar",
           "CYRILLIC": "ru", "DEVANAGARI": "hi", "GREEK": "el", "HEBREW": "he", "LAO": "lo", "KHMER": "km", "MYANMAR": "my"}
DETECTORS = {"py3langid": "py3langid", "lingua": "lingua-language-detector"}  # module → package
UNDECIDED = "und"  # ISO 639-2's code for a text in no known language
SHORTEST = 12  # letters; a shorter sentence is judged together with the next

_NOT_LANGUAGE = re.compile(r"""
    ```.*?(?:```|\Z) | `[^`\n]*`                                  # code
  | \$\$.*?\$\$ | \$[^$\n]*\$ | \\\[.*?\\\] | \\\(.*?\\\)         # formulas
  | \\[a-zA-Z]+(?:\{[^{}]*\})*                                    # LaTeX commands
  | <[^<>\n]{0,80}>                                               # tags
  | https?://\S+ | \S+@\S+                                        # addresses
  | (?<!\w)[A-Za-z](?!\w)\s*[=+*/^<>-]                            # a variable in a formula
""", re.VERBOSE | re.DOTALL)
_SENTENCE_END = re.compile(r"(?<=[.!?。！？])\s*|\n+")


@builtin
def language(target: str = "ms", among: tuple[str, ...] = ("ms", "en"), strict: bool = False,
             detector: str = "py3langid") -> RewardFunction:
    """Share of the completion's letters that are in the target language; None if it has no letters.

    `target` and `among` are ISO 639-1 codes; Latin text is taken to be in one of these. Malay ("ms") and Indonesian
    ("id") count as one unless `strict`. `detector` judges Latin text: "py3langid", or "lingua", slower and surer. Formulas,
    code, tags and addresses are left out.

    >>> language("en")(completions=["The answer is $x = 4$.", "Jawapannya ialah empat.", "答案是四。", "4"])
    [1.0, 0.0, 0.0, None]

    Source: the language consistency reward of DeepSeek-R1 (arXiv 2501.12948, section 2.3.2).
    """
    check_choice("detector", detector, tuple(DETECTORS))
    if find_spec(detector) is None:
        raise ValueError(f"it needs the package {DETECTORS[detector]}: pip install {DETECTORS[detector]}.")
    candidates = _candidates(target, among, strict)
    wanted = MALAY if target in MALAY and not strict else (target,)
    detect = _detector(detector, candidates)  # an unknown code is refused now

    def value(text: str) -> float | None:
        counts = letters_by_language(text, detect)
        total = sum(counts.values())
        return sum(counts.get(code, 0) for code in wanted) / total if total else None

    def language(completions: Sequence[Any], **columns: Any) -> list[float | None]:
        return [value(text) for text in texts_of(completions)]

    return language


def letters_by_language(text: str, detect: Callable[[str], str]) -> dict[str, int]:
    """Letters per language; Latin letters go to the one that `detect` says their sentence is in."""
    counts: dict[str, int] = {}
    latin = []
    cleaned = _NOT_LANGUAGE.sub(" ", text)
    has_kana = any(_script(letter) == "ja" for letter in cleaned)
    for character in cleaned:
        script = _script(character) if character.isalpha() else None
        if script is None:
            latin.append(character)
            continue
        latin.append(" ")
        script = "ja" if script == "zh" and has_kana else script
        counts[script] = counts.get(script, 0) + 1
    for sentence, letters in _sentences("".join(latin)):
        code = detect(sentence)
        counts[code] = counts.get(code, 0) + letters
    return counts


def _sentences(text: str) -> Iterator[tuple[str, int]]:
    """Sentences with their number of letters; short ones are joined with what follows, the last with what came before."""
    parts: list[tuple[str, int]] = []
    pending = ""
    for piece in _SENTENCE_END.split(text):
        pending = f"{pending} {piece}".strip()
        letters = sum(character.isalpha() for character in pending)
        if letters >= SHORTEST:
            parts.append((pending, letters))
            pending = ""
    letters = sum(character.isalpha() for character in pending)
    if letters and parts:
        last, count = parts.pop()
        parts.append((f"{last} {pending}", count + letters))
    elif letters:
        parts.append((pending, letters))
    yield from parts


def _candidates(target: str, among: Sequence[str], strict: bool) -> tuple[str, ...]:
    codes = {target, *([among] if isinstance(among, str) else among)}
    if codes & set(MALAY) and not strict:
        codes |= set(MALAY)
    return tuple(sorted(codes))


@lru_cache(maxsize=32)
def _detector(name: str, candidates: tuple[str, ...]) -> Callable[[str], str]:
    """Which of the candidates a sentence is in. ValueError for a code that the detector does not know."""
    return _lingua(candidates) if name == "lingua" else _py3langid(candidates)


def _py3langid(candidates: tuple[str, ...]) -> Callable[[str], str]:
    identifier = copy.copy(_all_languages())  # limiting it replaces its tables and leaves the original's alone
    identifier.set_languages(candidates)
    return lambda sentence: identifier.classify(sentence)[0]


@lru_cache(maxsize=1)
def _all_languages() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE)


def _lingua(candidates: tuple[str, ...]) -> Callable[[str], str]:
    from lingua import IsoCode639_1, LanguageDetectorBuilder

    unknown = [code for code in candidates if not hasattr(IsoCode639_1, code.upper())]
    if unknown:
        raise ValueError(f"Unknown language code {unknown[0]!r} for lingua.")
    detector = LanguageDetectorBuilder.from_iso_codes_639_1(*(getattr(IsoCode639_1, code.upper()) for code in candidates)).build()

    def detect(sentence: str) -> str:
        found = detector.detect_language_of(sentence)
        return UNDECIDED if found is None else found.iso_code_639_1.name.lower()

    return detect


@lru_cache(maxsize=4096)
def _script(character: str) -> str | None:
    """The language that a letter's script decides; None for Latin letters and for everything that is no letter."""
    return SCRIPTS.get(unicodedata.name(character, "").partition(" ")[0])
