"""Parts of the store: rows, groups, evaluations, migrations, the run folder, and the loop that records a trainer."""
