"""Hooks for tests and measurements that are off in production: failpoints and the timeline.

Imports services' errors alone, so that every other layer and role may call it. The two modules are independent.
"""
