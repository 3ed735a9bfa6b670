"""The proof: an oracle in extended precision, the rows and gradients it is asked about, and how far results are off."""
