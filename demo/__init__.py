"""The demo: a year of real flights in batch, as a stream and continuously, killed and rescaled, and the proof."""
