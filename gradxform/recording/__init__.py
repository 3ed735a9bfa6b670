"""Recordings of training runs: one safetensors file a step."""
