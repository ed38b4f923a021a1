"""Models the lab can load, and the script that makes the embedded one."""
