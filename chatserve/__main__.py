"""``python -m chatserve``: the same as the ``chatserve`` command."""

from chatserve.cli import main

main()
