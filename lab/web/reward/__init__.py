"""The Reward tab's server side: drafts and versions, checks, and running a reward on completions in a locked worker of this
process (never the engine's, so that trying a reward never waits for a training step)."""
