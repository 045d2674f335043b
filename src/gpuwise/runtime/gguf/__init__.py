"""GGUF files of a job's own weights, as llama.cpp reads them."""
