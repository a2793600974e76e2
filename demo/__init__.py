"""The demo: a year of real flights in batch, as a stream with a kill in the middle, and the proof."""
