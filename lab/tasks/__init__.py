"""Prompt sources: built-in tasks, examinations, reasoning-gym, typed prompts, rows and files. Nothing here imports torch."""

from lab.tasks.errors import TaskError
from lab.tasks.sources import BUILTIN_TASKS, Task, load_task, prompt_text, task_table

__all__ = ["BUILTIN_TASKS", "Task", "TaskError", "load_task", "prompt_text", "task_table"]
