"""``python -m headgate``: the command ``headgate``, where its folder is not on the ``PATH``."""

from headgate.cli import main

main()
