"""The built-in connectors, one folder each: source, split, enumerator, split reader."""
