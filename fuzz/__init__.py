"""Random inputs and programs on real Spark: Headgate does with them as Spark does, or a page of docs/ says why not."""
