"""Ring 2: the machinery. Opens uploaded files and runs methods in a confined child process."""
