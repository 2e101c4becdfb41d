"""Train the built-in checkpoint.

python scripts/train_tiny.py --minutes 90 --out runs/tiny
"""

from training.train import main

if __name__ == "__main__":
    main()
