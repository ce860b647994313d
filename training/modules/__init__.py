"""Building blocks of models: named parameters, and the operations that use them."""
