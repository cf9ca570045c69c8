"""Forward passes of our own over small models: training, decoding, and decoding by transformers."""
