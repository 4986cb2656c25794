"""What runs inside a training script: it imports PyTorch and nothing of ours, as the script's Python may lack Nadi."""
