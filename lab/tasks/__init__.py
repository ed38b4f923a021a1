"""Prompt sources: built-in tasks, typed prompts, rows and files. Nothing here imports torch."""

from lab.tasks.sources import BUILTIN_TASKS, Task, TaskError, load_task, prompt_text, task_table

__all__ = ["BUILTIN_TASKS", "Task", "TaskError", "load_task", "prompt_text", "task_table"]
