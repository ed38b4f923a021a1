"""The rules beside `lab/grpo.py`: advantages, losses, masks, entropy. Tensors in, tensors out; torch only."""
