"""``marft export``: trained policies as folders that PEFT, transformers, vLLM and llama.cpp load."""
