"""The sum of a step's gradients: what has arrived, what is missing, and where each chunk goes."""
