"""Ready-made enumerators, as `headgate.readers` has ready-made readers: one so far, of partitions of topics."""
