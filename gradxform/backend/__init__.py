"""The door to the frameworks: what each must bring, and which of them owns an array."""
