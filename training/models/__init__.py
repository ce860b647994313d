"""The models that workers can train.

Read model.py first, the interface of a model. Then read gpt2.py with language.py, a whole model, and build.py, which
builds a model, or a range of its blocks, from a config. custom.py builds users' own models.
"""
