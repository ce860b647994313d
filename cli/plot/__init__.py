"""`tiermesh plot`: curves of jobs as a picture.

command.py     the command
run.py         reads histories of an aggregator or of folders, and writes the picture
curves.py      a history's columns as curves: gaps, smoothing
picture.py     draws curves as SVG
"""
