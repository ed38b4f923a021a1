"""The one error of everything that brings prompts."""

from __future__ import annotations


class TaskError(ValueError):
    """Prompts that cannot be used: the message names the source, the line or row, and what to change."""
