"""Arrays between the workers of a row: activations, their gradients, and parts of a tied embedding's gradient."""
