"""A folder for the `PYTHONPATH` of the processes that become slots: Python runs its `sitecustomize` before all else."""
