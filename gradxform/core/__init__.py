"""What transforms are made of: the transformation, the flat view of a tree, states."""
