"""Ring 1: the numbers. One module per audit method; numpy in, a `Result` out, no input or output, no state."""
