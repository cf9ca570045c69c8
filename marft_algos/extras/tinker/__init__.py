"""The Tinker protocol: several LoRA policies of one base, where somebody else holds the weights."""
