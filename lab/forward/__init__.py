"""How log-probabilities and tokens are computed: adapters, the head, and quick ways that are each checked against the plain one."""
