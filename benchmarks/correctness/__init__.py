"""What is right, what is kept, and how the code is built."""
