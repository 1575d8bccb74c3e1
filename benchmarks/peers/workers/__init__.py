"""Workers: each runs one engine in a process of its own. They import nothing of the other ones' environments."""
