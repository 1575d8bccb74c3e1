"""One module for each experiment: what it runs, its figure, and its rows of the table."""
