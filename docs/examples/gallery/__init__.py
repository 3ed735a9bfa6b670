"""The pictures of the how-to gallery. Each function draws one on given axes, from what gradxform computes.

    python docs/examples/gallery [FOLDER]

writes a PNG for each function, under its name, into the folder; docs/pictures/gallery if none is given.
"""
