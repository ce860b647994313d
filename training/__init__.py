"""Training on one mesh: models, data, and the step that computes gradients. It knows a config, but nothing of clusters.

Read it in this order:

1. `step.py`: what a worker calls: load weights, compute micro-batches, evaluate. `pipeline/` has the order of passes,
   `range_step.py` a pass through a range of blocks or the whole model. `weights.py`, `job_data.py`, `gradient_sink.py`.
2. `autograd/`: variables and parameters on the mesh, and the tape that computes gradients.
3. `ops/`: one function for each operation, with its gradient.
4. `modules/` and `models/`: layers and models made of operations.
5. `data/`: tokenizers and batches. `seeds.py`: random numbers that follow from names.
6. `parameter_placement.py`: how parameters are cut over devices. `inputs.py`, `traced_pass.py`: repeated passes.
7. `generation/`: text from a trained model.
8. `api.py`: what users' own models import.
"""
